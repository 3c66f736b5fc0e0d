"""Decisions of a choice on disk (`decisions.json`), checked when they are read."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

from stellaris_jax.base import inputs
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.many.choose.arms import Candidate
from stellaris_jax.many.choose.screening import Timing
from stellaris_jax.runs.run_dir import writing

DECISIONS = "decisions.json"
SAVED_EVERY = 10.0
"""Real seconds between two stored counts of seconds while runs train."""


SEARCHED = ("rung 1", "rung 2", "rung 3", "target")
"""Decisions of a search."""


class Decisions:
    """Decisions of a choice, stored when they are made, and the real seconds that it has taken.

    A choice that is resumed repeats none of them, so it ends as an uninterrupted one does.

    Args:
      directory: directory of the choice.
      candidates: its candidates, which the decisions are about.
      budget: seconds that may be spent. If they are more than those that a search without a judgement had, the search
        is decided again, with all the runs that are there.
      since: second of `time.monotonic` from which time counts; now by default.

    Attributes:
      pace: real seconds for a round of one seed, measured in the last stage; 0 before any.
      setup: other real seconds for a run, such as for compiling.

    Raises ConfigError if the file is damaged, or belongs to another choice.
    """

    def __init__(
        self, directory: Path, candidates: Sequence[Candidate], budget: float = 0.0, since: float | None = None
    ):
        self.path = directory / DECISIONS
        self.pace = self.setup = 0.0
        self._made: dict[str, Any] = {}
        self._spent, self._since = 0.0, time.monotonic() if since is None else since
        self._saved, self._budget = self._since, budget
        if self.path.is_symlink() or self.path.exists():
            document = _read(self.path)
            self._made, self._spent = document["decisions"], document["seconds"]
            self.pace, self.setup = document.get("pace", 0.0), document.get("setup", 0.0)
            if wrong := _Check(self._made, candidates).wrong():
                raise ConfigError(f"{self.path} is not as this choice writes it: {wrong} cannot be; {ADVICE}.")
            before = document.get("budget", math.inf)
            if budget > before and "judgement" not in self._made:
                self._made = {name: made for name, made in self._made.items() if name not in SEARCHED}
            self._budget = max(budget, before) if math.isfinite(before) else budget

    @property
    def seconds(self) -> float:
        """Real seconds spent so far, those before a resume included."""
        return self._spent + time.monotonic() - self._since

    def __contains__(self, name: str) -> bool:
        return name in self._made

    def __getitem__(self, name: str) -> Any:
        return self._made[name]

    def make(self, name: str, value: Any) -> Any:
        """Store a decision, unless it was made before; returns the one that holds."""
        if name not in self._made:
            self._made[name] = value
            self.save()
        return self._made[name]

    def save(self) -> None:
        """Store decisions and seconds."""
        self._saved = time.monotonic()
        with writing(self.path.parent):
            times = {"seconds": round(self.seconds, 1), "pace": self.pace, "setup": self.setup}
            times["budget"] = self._budget
            document = {**times, "decisions": self._made}
            write_atomically(self.path, json.dumps(document, indent=1) + "\n")

    def save_seconds(self) -> None:
        """Store the seconds if they were not stored for a while, so that a kill loses few of them."""
        if time.monotonic() - self._saved >= SAVED_EVERY:
            self.save()


ADVICE = "put it back, or remove it to decide again from the runs that are there"


def _read(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(inputs.read_text(path))
    except (OSError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path} cannot be read: {inputs.reason(error)}; {ADVICE}.") from None
    document = document if isinstance(document, dict) else {}
    numbers: list[Any] = [document.get("seconds"), document.get("pace", 0.0), document.get("setup", 0.0)]
    numbers.append(document.get("budget", 0.0))
    if not all(is_number(number) and number >= 0 for number in numbers) or not isinstance(
        document.get("decisions"), dict
    ):
        raise ConfigError(f"{path} is not as a choice writes it; {ADVICE}.")
    return document


class _Check:
    """Check of decisions: types, numbers of candidates, and names of systems."""

    def __init__(self, made: dict[str, Any], candidates: Sequence[Candidate]):
        self.made, self.candidates = made, candidates
        self.systems = {own.arm.system for own in candidates}

    def wrong(self) -> str:
        """Name of the first decision that is not as a choice makes it; "" without one."""
        checks: dict[str, Callable[[Any], bool]] = {
            "timings": lambda value: self._are_timings(value, self.systems),
            "dominated": self._are_dominated,
            "rung 1": lambda value: self._are_numbers(value, range(len(self.candidates))),
            "rung 2": lambda value: self._are_numbers(value, self.made.get("rung 1", ())),
            "rung 3": lambda value: self._are_numbers(value, self.made.get("rung 2", ())),
            "target": is_number,
            "judgement": self._is_judgement,
            "judged": lambda value: self._are_flags(value, self._judged),
            "learners": lambda value: isinstance(value, list) and all(type(n) is int and n >= 1 for n in value),
            "scaled": lambda value: self._are_flags(value, None),
            "results": lambda value: self._are_flags(value, None),
            "slower": self._are_slower,
        }
        return next((name for name in self.made if name not in checks or not checks[name](self.made[name])), "")

    @property
    def _judged(self) -> list[int]:
        judgement = self.made.get("judgement", {})
        return judgement["numbers"] if self._is_judgement(judgement) else []

    def _are_dominated(self, value: Any) -> bool:
        names = self.systems
        return isinstance(value, dict) and all(
            name in names and isinstance(rival, str) and rival in names and rival not in value
            for name, rival in value.items()
        )

    def _is_judgement(self, value: Any) -> bool:
        known = self.made.get("rung 1")
        return (
            isinstance(value, dict)
            and isinstance(known, list)
            and self._are_numbers(value.get("numbers"), known)
            and type(value.get("seeds")) is int
            and value["seeds"] >= 1
        )

    def _are_slower(self, value: Any) -> bool:
        flags = self.made.get("judged")
        if not (
            isinstance(value, dict) and set(value) == {"learners", "actors"} and self._are_flags(flags, self._judged)
        ):
            return False
        numbers = [str(number) for number, there in zip(self._judged, flags or (), strict=True) if there]
        return all(self._are_timings(own, numbers) for own in value.values())

    @staticmethod
    def _are_numbers(value: Any, known: Collection[int]) -> bool:
        return (
            isinstance(value, list)
            and bool(value)
            and all(type(number) is int and number in known for number in value)
            and len(set(value)) == len(value)
        )

    @staticmethod
    def _are_flags(value: Any, of: Sequence[int] | None) -> bool:
        flags = isinstance(value, list) and all(isinstance(flag, bool) for flag in value)
        return flags and (of is None or len(value) == len(of))

    @staticmethod
    def _are_timings(value: Any, names: Collection[str]) -> bool:
        return (
            isinstance(value, dict)
            and set(value) == set(names)
            and all(
                isinstance(figures, list) and len(figures) == len(Timing._fields) and all(map(_is_figure, figures))
                for figures in value.values()
            )
        )


def _is_figure(value: Any) -> bool:
    return isinstance(value, float) or is_number(value)  # a mean over nothing is NaN


def is_number(value: Any) -> bool:
    """Whether a value of a file is a finite number."""
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floating-point numbers
        return False
