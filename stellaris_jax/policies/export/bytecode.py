"""Depth check of the operations in MLIR bytecode, before MLIR reads it. Plain Python.

MLIR reads, checks and lowers nested operations by recursion: some thousands of nested ones crash the process. The check
also refuses text, which MLIR would parse by recursion. The format is https://mlir.llvm.org/docs/BytecodeFormat/.
"""

from __future__ import annotations

MAGIC = b"ML\xefR"
VERSIONS = range(4, 7)
"""Accepted versions of the format; JAX 0.10 to 0.12 write version 6."""
MOST_BYTES = 2**22
"""Largest size of all operations, in bytes; 64 layers have some ten thousands."""
OFFSETS, IR = 3, 4
"""Numbers of sections: offsets of attributes and types, and operations."""
ATTRIBUTES, RESULTS, OPERANDS, SUCCESSORS, REGIONS, ORDERS, PROPERTIES = (1 << i for i in range(7))
"""Parts of an operation, as bits of its mask."""


def check_bytecode(data: bytes, deepest: int) -> None:
    """Raise ValueError for data other than bytecode, and for operations nested more than `deepest` levels."""
    try:
        _check(data, deepest)
    except IndexError:
        raise ValueError("its program is cut off") from None


class _Bytes:
    """Cursor over bytes. Raises IndexError at their end."""

    def __init__(self, data: memoryview, at: int = 0):
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """Read an integer; the number of zeros at the end of its first byte gives the number of bytes that follow."""
        first = self.byte()
        if first & 1:
            return first >> 1
        more = (first & -first).bit_length() - 1 if first else 8
        end = self.at + more
        if end > len(self.data):
            raise IndexError
        value = int.from_bytes(self.data[self.at : end], "little")
        self.at = end
        return (first | value << 8) >> (more + 1) if first else value

    def numbers(self) -> list[int]:
        """Read a count, and that many integers."""
        return [self.number() for _ in range(self.number())]

    def section(self) -> tuple[int, int]:
        """Read the head of a section; returns its number and the end of its contents."""
        code, length = self.byte(), self.number()
        if code & 0x80:  # alignment and padding
            alignment = self.number()
            self.at = -(-self.at // max(alignment, 1)) * max(alignment, 1)
        end = self.at + length
        if end > len(self.data):
            raise IndexError
        return code & 0x7F, end


def _check(program: bytes, deepest: int) -> None:
    if not program.startswith(MAGIC):
        raise ValueError("its program is no MLIR bytecode")
    data = _Bytes(memoryview(program), len(MAGIC))
    version = data.number()
    if version not in VERSIONS:
        raise ValueError(f"its program has version {version} of MLIR's bytecode; accepted: 4 to {VERSIONS[-1]}")
    data.at = program.find(b"\0", data.at) + 1  # skip the producer's name
    if not data.at:
        raise IndexError
    seen = set()
    while data.at < len(program):
        code, end = data.section()
        if code in seen:
            raise ValueError(f"its program has the section {code} of MLIR's bytecode twice")
        seen.add(code)
        if code in (IR, OFFSETS):
            if end - data.at > MOST_BYTES:
                raise ValueError(f"its program has more than {MOST_BYTES} bytes of operations, beside constants")
            part = _Bytes(data.data[:end], data.at)
            if code == IR:
                _block(part, deepest)
            else:
                _encodings(part, end)
            if part.at != end:
                raise ValueError("its program is no MLIR bytecode of a form that is known")
        data.at = end


def _encodings(data: _Bytes, end: int) -> None:
    """Raise ValueError for an attribute or a type that is text."""
    data.number(), data.number()  # numbers of attributes and of types
    while data.at < end:
        data.number()  # the dialect
        if not all(offset & 1 for offset in data.numbers()):
            raise ValueError("its program has an attribute or a type in text, which no exported policy has")


def _block(data: _Bytes, deeper: int) -> None:
    """Skip a block. Raises ValueError if operations are nested too deeply."""
    if deeper < 0:
        raise ValueError("its operations stand too deep in one another, as in no exported policy")
    count = data.number()
    if count & 1:
        arguments = data.number()
        for _ in range(arguments):
            if data.number() & 1:  # the type, and whether a location follows
                data.number()
        if data.byte():
            _orders(data, arguments)
    for _ in range(count >> 1):
        _operation(data, deeper)


def _operation(data: _Bytes, deeper: int) -> None:
    """Skip an operation and its regions."""
    data.number()  # the name
    mask = data.byte()
    data.number()  # the location
    for part in (ATTRIBUTES, PROPERTIES):
        if mask & part:
            data.number()
    results = data.numbers() if mask & RESULTS else []
    for part in (OPERANDS, SUCCESSORS):
        if mask & part:
            data.numbers()
    if mask & ORDERS:
        _orders(data, len(results))
    if mask & REGIONS:
        count = data.number()
        for _ in range(count >> 1):
            if count & 1:  # a function's region is a separate section
                data.section()
            blocks = data.number()
            if blocks:
                data.number()  # number of values
            for _ in range(blocks):
                _block(data, deeper - 1)


def _orders(data: _Bytes, values: int) -> None:
    """Skip the use-list orders of some of `values` values."""
    for _ in range(data.number() if values > 1 else 1):
        if values > 1:
            data.number()  # index of the value
        count = data.number() >> 1
        for _ in range(count):
            data.number()
