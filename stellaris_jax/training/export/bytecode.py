"""Depth of the operations in MLIR's bytecode, found before MLIR reads it. Plain Python.

MLIR reads, checks and lowers nested operations by recursion: some thousands of them inside one another end the process.
Text that it would parse by recursion, too, is refused. The format is https://mlir.llvm.org/docs/BytecodeFormat/.
"""

from __future__ import annotations

MAGIC = b"ML\xefR"
VERSIONS = range(4, 7)
"""Versions of the format that are read; JAX 0.10 to 0.12 write version 6."""
MOST_BYTES = 2**22
"""Bytes of all operations at most; 64 layers have some ten thousands."""
OFFSETS, IR = 3, 4
"""Sections: where attributes and types stand, and operations."""
ATTRIBUTES, RESULTS, OPERANDS, SUCCESSORS, REGIONS, ORDERS, PROPERTIES = (1 << i for i in range(7))
"""Parts of an operation, as bits of its mask."""
ORDERED = "its program has an order of uses, which no exported policy has"


def check_bytecode(data: bytes, deepest: int) -> None:
    """Raise ValueError for bytes that are no bytecode, and for operations more than `deepest` deep in one another."""
    try:
        _check(_Bytes(data), deepest)
    except IndexError:
        raise ValueError("its program is cut off") from None


class _Bytes:
    """Bytes that are read one part after the other. IndexError where they end."""

    def __init__(self, data: bytes, at: int = 0):
        self.data, self.at = data, at

    def byte(self) -> int:
        self.at += 1
        return self.data[self.at - 1]

    def number(self) -> int:
        """An integer: as many zeros as its first byte ends in, so many bytes follow."""
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
        """A count, and so many integers."""
        return [self.number() for _ in range(self.number())]

    def section(self) -> tuple[int, int]:
        """The number of a section, whose contents come next, and where it ends."""
        code, length = self.byte(), self.number()
        if code & 0x80:  # alignment, and what fills up to it
            alignment = self.number()
            self.at = -(-self.at // max(alignment, 1)) * max(alignment, 1)
        end = self.at + length
        if end > len(self.data):
            raise IndexError
        return code & 0x7F, end


def _check(data: _Bytes, deepest: int) -> None:
    if data.data[:4] != MAGIC:
        raise ValueError("its program is no MLIR bytecode")
    data.at = 4
    version = data.number()
    if version not in VERSIONS:
        raise ValueError(f"its program has version {version} of MLIR's bytecode; accepted: 4 to {VERSIONS[-1]}")
    data.at = data.data.find(b"\0", data.at) + 1  # behind the name of what wrote it
    seen = set()
    while data.at < len(data.data):
        code, end = data.section()
        if code in seen:
            raise ValueError(f"its program has the section {code} of MLIR's bytecode twice")
        seen.add(code)
        if code in (IR, OFFSETS):
            if end - data.at > MOST_BYTES:
                raise ValueError(f"its program has more than {MOST_BYTES} bytes of operations, beside constants")
            if code == IR:
                _block(data, deepest)
            else:
                _encodings(data, end)
            if data.at != end:
                raise ValueError("its program is no MLIR bytecode of a form that is known")
        data.at = end


def _encodings(data: _Bytes, end: int) -> None:
    """Raise ValueError for an attribute or a type that is text."""
    data.number(), data.number()  # how many of both there are
    while data.at < end:
        data.number()  # the dialect
        if not all(offset & 1 for offset in data.numbers()):
            raise ValueError("its program has an attribute or a type in text, which no exported policy has")


def _block(data: _Bytes, deeper: int) -> None:
    """Read over a block. Raises ValueError where operations stand too deep."""
    if deeper < 0:
        raise ValueError("its operations stand too deep in one another, as in no exported policy")
    count = data.number()
    if count & 1:
        for _ in range(data.number()):
            if data.number() & 1:  # the type, and whether a location follows
                data.number()
        if data.byte():
            raise ValueError(ORDERED)
    for _ in range(count >> 1):
        _operation(data, deeper)


def _operation(data: _Bytes, deeper: int) -> None:
    data.number()  # the name
    mask = data.byte()
    data.number()  # the location
    for part in (ATTRIBUTES, PROPERTIES):
        if mask & part:
            data.number()
    for part in (RESULTS, OPERANDS, SUCCESSORS):
        if mask & part:
            data.numbers()
    if mask & ORDERS:
        raise ValueError(ORDERED)
    if mask & REGIONS:
        count = data.number()
        for _ in range(count >> 1):
            if count & 1:  # a function's region is a section of its own
                data.section()
            blocks = data.number()
            if blocks:
                data.number()  # of values
            for _ in range(blocks):
                _block(data, deeper - 1)
