"""Counts of what a compiled program makes a GPU and its host do, from the files that XLA's compiler writes.

XLA dumps the sequence of a program's *thunks*: kernels, copies, CUDA graphs of these, loops, conditionals. A loop whose
length the compiler knows costs its turns' launches. One whose length is a value costs a wait of the host at every turn
as well, in which it reads one bit. Names and lengths of loops are in the text of the compiled program.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

LOOP, CONDITIONAL, GRAPH = "kWhile", "kConditional", "kCommandBuffer"
SEQUENCE = "*thunk_sequence_after_thunk_passes.txt"

ROUND, STEP, GRADIENT = "round", "env step", "gradient"
FUNCTIONS = {"rollout": STEP, "loop": GRADIENT}
"""Names of loops, by the function that makes them; other loops are named after their function."""


@dataclass
class Thunk:
    """One step of the host's work, and what is within it.

    Attributes:
      number: its number in the dump.
      kind: such as `kKernel`.
      section: `body` or `condition` of a loop; a branch of a conditional.
      within: the steps within it.
    """

    number: int
    kind: str
    section: str
    within: list[Thunk] = field(default_factory=list)


@dataclass(frozen=True)
class Counts:
    """Counts of one pass through a stretch of a program.

    Attributes:
      kernels: kernels and copies on the device.
      launches: launches by the host: a CUDA graph is one.
      waits: times that the host waits for the device.
    """

    kernels: float = 0
    launches: float = 0
    waits: float = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.kernels + other.kernels, self.launches + other.launches, self.waits + other.waits)

    def times(self, turns: float) -> Counts:
        """Counts of so many times."""
        return Counts(self.kernels * turns, self.launches * turns, self.waits * turns)


@dataclass(frozen=True)
class Loop:
    """Loop of a program.

    Attributes:
      name: what a turn of it is; see `FUNCTIONS`.
      turns: its length if the compiler knows it, else `None`.
      own: counts of one turn, loops within it left out.
      loops: the loops within it.
    """

    name: str
    turns: int | None
    own: Counts
    loops: tuple[Loop, ...]

    def turn(self, lengths: dict[str, float]) -> Counts:
        """Counts of one turn, with all loops within it; `lengths` are those that the compiler does not know."""
        return self.own + _all(self.loops, lengths)

    def whole(self, lengths: dict[str, float]) -> Counts:
        """Counts of all turns."""
        return self.turn(lengths).times(lengths.get(self.name, 1) if self.turns is None else self.turns)


def _all(loops: Iterable[Loop], lengths: dict[str, float]) -> Counts:
    return sum((loop.whole(lengths) for loop in loops), Counts())


@dataclass(frozen=True)
class Counted:
    """Compiled program, counted.

    Attributes:
      own: counts outside of loops.
      loops: its loops.
    """

    own: Counts
    loops: tuple[Loop, ...]

    def whole(self, lengths: dict[str, float]) -> Counts:
        """Counts of one execution; `lengths` are those of loops that the compiler does not know, by name."""
        return self.own + _all(self.loops, lengths)

    def find(self, name: str) -> Loop | None:
        """The first loop of a name, outer ones first."""
        level = list(self.loops)
        while level:
            for loop in level:
                if loop.name == name:
                    return loop
            level = [inner for loop in level for inner in loop.loops]
        return None


def counted(dump: Path, text: str) -> Counted:
    """Counts of a program.

    Args:
      dump: folder that XLA's `--xla_dump_to` has filled with the files of this one program.
      text: the compiled program.

    Raises:
      FileNotFoundError: the folder has no sequence of thunks.
    """
    sequence = max(dump.glob(SEQUENCE), key=lambda path: path.stat().st_size, default=None)
    if sequence is None:
        raise FileNotFoundError(f"{dump} has no {SEQUENCE}")
    metadata = sequence.with_name(sequence.name.replace("_sequence_after_thunk_passes", "_metadata"))
    names, loops = _names(metadata.read_text()), dict(_loops(text))
    own, inner = _counts(parse(sequence.read_text().splitlines()), names, loops)
    return Counted(own, inner)


def parse(lines: Iterable[str]) -> list[Thunk]:
    """Thunks of a dumped sequence, outermost first."""
    root = Thunk(-1, "", "")
    stack, title = [(-1, root)], ""
    sections: dict[int, str] = {}  # of each open thunk, by its depth
    for line in lines:
        found = re.match(r"( *)(\d+): (k\w+)", line)
        if found is None:
            title = line.strip().rstrip(":") or title
            continue
        indent = len(found[1])
        while stack[-1][0] >= indent:
            stack.pop()
        if title:  # titles are indented at will, so a title belongs to the parent of the thunk after it
            sections[len(stack)], title = title, ""
        parent = stack[-1][1]
        thunk = Thunk(
            int(found[2]), found[3], sections.get(len(stack), "") if parent.kind in (LOOP, CONDITIONAL) else ""
        )
        parent.within.append(thunk)
        stack.append((indent, thunk))
    return root.within


def _counts(
    thunks: list[Thunk], names: dict[int, str], loops: dict[str, tuple[str, int | None]]
) -> tuple[Counts, tuple[Loop, ...]]:
    """Counts of a sequence without its loops, and the loops."""
    own, found = Counts(), list[Loop]()
    for thunk in thunks:
        if thunk.kind == LOOP:
            body = [inner for inner in thunk.within if inner.section == "body"]
            condition = [inner for inner in thunk.within if inner.section != "body"]
            name, turns = loops.get(names.get(thunk.number, ""), ("loop", None))
            inside, within = _counts(body, names, loops)
            if turns is None:  # the host computes the condition, and reads it
                kernels = sum(map(_leaves, condition))
                inside += Counts(kernels + 1, kernels + 1, 1)
            found.append(Loop(name, turns, inside, within))
        elif thunk.kind == CONDITIONAL:
            # The dearer branch; the host reads which one it is.
            each = [_counts(branch, names, loops) for branch in _branches(thunk)]
            dearest, within = max(each, key=lambda branch: branch[0].kernels, default=(Counts(), ()))
            own += dearest + Counts(1, 1, 1)
            found += within
        elif thunk.kind == GRAPH:
            own += Counts(_leaves(thunk), 1, 0)
        elif thunk.within:
            inside, within = _counts(thunk.within, names, loops)
            own, found = own + inside, [*found, *within]
        elif thunk.kind != "kAsyncDone":
            own += Counts(1, 1, 0)
    return own, tuple(found)


def _leaves(thunk: Thunk) -> int:
    """Kernels and copies within a thunk, or the thunk itself; of a conditional those of its dearest branch."""
    if thunk.kind == "kAsyncDone":
        return 0
    if not thunk.within:
        return 1
    if thunk.kind != CONDITIONAL:
        return sum(map(_leaves, thunk.within))
    return 1 + max(sum(map(_leaves, branch)) for branch in _branches(thunk))


def _branches(thunk: Thunk) -> list[list[Thunk]]:
    """Steps of each branch of a conditional that has any."""
    branches: dict[str, list[Thunk]] = {}
    for inner in thunk.within:
        branches.setdefault(inner.section, []).append(inner)
    return list(branches.values())


def _names(text: str) -> dict[int, str]:
    """Names of instructions by the numbers of their thunks."""
    pairs = re.findall(r'profile_annotation: "([^"]+)"\s+thunk_id: (\d+)', text)
    return {int(number): name for name, number in pairs}


def _loops(text: str) -> Iterator[tuple[str, tuple[str, int | None]]]:
    """Name and length of each loop of a compiled program, by the name of its instruction."""
    functions = _functions(text)
    for line in text.splitlines():
        found = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = .*? while\(", line)
        if found is None:
            continue
        length = re.search(r'known_trip_count":\s*\{"n":"(\d+)"', line)
        frame = re.search(r"stack_frame_id=(\d+)", line)
        name = functions.get(int(frame[1]), "loop") if frame else "loop"
        yield found[1], (name, int(length[1]) if length else None)


def _functions(text: str) -> dict[int, str]:
    """Names of loops by the number of the stack frame that makes them."""
    names = {int(n): name for n, name in re.findall(r'^(\d+) "([^"]*)"$', _table(text, "FunctionNames"), re.M)}
    places = re.findall(r"^(\d+) \{.*?function_name_id=(\d+)", _table(text, "FileLocations"), re.M)
    functions = {int(place): names.get(int(function), "") for place, function in places}
    frames = re.findall(r"^(\d+) \{file_location_id=(\d+)", _table(text, "StackFrames"), re.M)
    found = {}
    for frame, place in frames:
        function = functions.get(int(place), "")
        last = function.rpartition(".")[2]
        found[int(frame)] = ROUND if function.endswith("_chunk") else FUNCTIONS.get(last, last)
    return found


def _table(text: str, title: str) -> str:
    """Lines of a table at the top of a compiled program."""
    found = re.search(rf"^{title}\n(.*?)\n\n", text, re.M | re.S)
    return "" if found is None else found[1] + "\n"
