"""Display of many concurrent runs: one line for all of them."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from stellaris_jax.telemetry.format import compact, duration, percent, significant
from stellaris_jax.telemetry.progress import LINE_EVERY_SECONDS, REFRESH_PER_SECOND, Display


class Line(Protocol):
    """Events that a point reports to the display of all points; see `SharedDisplay`."""

    console: Console

    def advanced(self, point: int, steps: int) -> None: ...

    def evaluated(self, point: int, value: float | None) -> None: ...

    def working(self, text: str, point: int) -> None: ...

    def note(self, text: str, point: int | None = None) -> None: ...


class SharedDisplay:
    """One line on all points of a sweep: number of finished points, speed, best return, remaining time.

    Its methods are thread-safe.

    Args:
      console: console to show it on: as a line that is redrawn on a terminal, else as a line every ten seconds.
      steps: env steps of every point, over its seeds.
      done: points that are finished already.
      progress: whether to redraw the line, where that is possible.
      unit: noun for the points, in the plural.
    """

    def __init__(
        self, console: Console, steps: list[int], done: set[int], progress: bool = True, unit: str = "points"
    ) -> None:
        self.console = console
        self.steps = steps
        self.done = set(done)
        self.unit = unit
        self.reached = {point: steps[point] for point in done}
        self.best: tuple[float, int] | None = None
        self.work = "starting" if len(self.done) < len(steps) else ""
        self._began: float | None = None
        self._first: dict[int, int] = {}
        self._last: dict[int, int] = {}
        self._shown: set[str] = set()
        self._lock = threading.Lock()
        self._last_line = time.monotonic()
        live = progress and console.is_terminal and not console.is_dumb_terminal
        self._drawn = live
        self._live: Live | None = None
        if not live and self.work:
            self._print(self.line())
        elif live:
            # Drawing takes no lock, because `note` prints while it holds one and rich's own.
            self._live = Live(get_renderable=self.line, console=console, refresh_per_second=REFRESH_PER_SECOND)
            self._live.start()

    def line(self) -> Text:
        """Current state of all points."""
        reached, total = sum(list(self.reached.values())), sum(self.steps)
        pace = self._pace()
        parts = [f"{len(self.done)}/{len(self.steps)} {self.unit}", percent(reached / total if total else 1.0)]
        if self.work:
            parts.append(self.work)
        if pace:
            parts.append(f"ETA {duration((total - reached) / pace)}")
        if self.best is not None:
            parts.append(f"best {significant(self.best[0])} ({self.unit[:-1]} {self.best[1]})")
        speed = f"{compact(pace)} steps/s"
        if pace and (not self._drawn or len("  ".join([*parts, speed])) <= self.console.width):
            parts.insert(2, speed)  # left out if there is no room
        return Text("  ".join(parts), no_wrap=True, overflow="ellipsis")

    def advanced(self, point: int, steps: int) -> None:
        """Record the number of steps that a point has trained in all."""
        with self._lock:
            self.reached[point] = min(steps, self.steps[point])
            if steps:
                self.work = ""
                self._began = time.monotonic() if self._began is None else self._began
                self._first.setdefault(point, self.reached[point])
                self._last[point] = self.reached[point]
            due = self._live is None and time.monotonic() - self._last_line >= LINE_EVERY_SECONDS
            if due:
                self._last_line = time.monotonic()
        if due:
            self._print(self.line())

    def _pace(self) -> float:
        """Steps a second since the first steps were reported; 0 before more are.

        Neither the first compilation counts, nor steps of points that were resumed or failed.
        """
        trained = sum(self._last[point] - first for point, first in list(self._first.items()))
        seconds = 0.0 if self._began is None else time.monotonic() - self._began
        return trained / seconds if seconds > 0 else 0.0

    def evaluated(self, point: int, value: float | None) -> None:
        """Record the return of an evaluation of a point."""
        with self._lock:
            if value is not None and (self.best is None or value > self.best[0]):
                self.best = value, point

    def finished(self, point: int) -> None:
        """Record that a point is over, with or without a result."""
        with self._lock:
            self.done.add(point)
            self.work = ""
            self.reached[point] = self.steps[point]

    def working(self, text: str, point: int) -> None:
        """Announce work of a point that may take minutes.

        The line shows it until there is progress; pipes get one line.
        """
        if self._live is None:
            self.note(text, point)
        elif self._began is None:
            self.work = text

    def note(self, text: str, point: int | None = None) -> None:
        """Show a message of one point or of all; equal messages of several points are shown once."""
        with self._lock:
            if point is not None and text in self._shown:
                return
            self._shown.add(text)
        self._print(Text(text if point is None else f"{self.unit[:-1]} {point}: {text}"))

    def close(self) -> None:
        """End the display with the current line; a second call does nothing."""
        live, self._live = self._live, None
        if live is not None:
            live.stop()

    def _print(self, text: Text) -> None:
        self.console.print(text, soft_wrap=True)


class PointDisplay(Display):
    """Display of one point, which forwards to the line of all points. Details of single runs are left out."""

    def __init__(self, shared: Line, point: int, total_rounds: int, seeds: int) -> None:
        super().__init__(shared.console, f"point {point}", total_rounds)
        self.shared, self.point, self.seeds = shared, point, seeds

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        self.shared.advanced(self.point, round(rows[-1]["env_steps"] * self.seeds))

    def evaluation(self, row: dict[str, Any]) -> None:
        self.shared.evaluated(self.point, row["eval_return_mean"])

    def working(self, text: str) -> None:
        self.shared.working(text, self.point)

    def worked(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self.shared.note(text, self.point)

    def leave(self) -> None: ...

    def finished(self, summary: dict[str, Any], run_dir: Path, returns: Sequence[float] = ()) -> None: ...
