"""Displays of a training run: a live panel on a terminal or in a notebook, lines in a pipe."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from stellaris_jax.telemetry import format as fmt
from stellaris_jax.telemetry.summary import print_summary

REFRESH_PER_SECOND = 2
LINE_EVERY_SECONDS = 10.0
WIDTH = 100
NARROW = 80
"""Terminal width below which the values of a line are not aligned in columns."""


LINE_WIDTH = 160
"""Width of lines in a notebook, in columns."""
NOTEBOOK_HTML = '<pre style="white-space:pre;overflow-x:auto;line-height:normal;font-family:monospace">{code}</pre>'


class Display:
    """Latest values of a run and its remaining time. Subclasses show them."""

    def __init__(self, console: Console, title: str, total_rounds: int, clock: str = "simulated") -> None:
        self.console = console
        self.clock = clock
        self.title = title
        self.total_rounds = total_rounds
        self.started = time.monotonic()
        self.latest: dict[str, Any] = {}
        self.evaluations: list[dict[str, Any]] = []
        self.work = ("", self.started)
        self.farewell: Callable[[], str] | None = None
        self._first_arrival: tuple[float, int] | None = None
        self._last_arrival = (self.started, 0)

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        """Record training rounds. A value missing from a round keeps its last value, except the gate."""
        for row in rows:
            known = {key: value for key, value in row.items() if value is not None}
            self.latest = {**self.latest, **known, "gate": row.get("gate")}
        self._last_arrival = (time.monotonic(), rows[-1]["round"])
        self._first_arrival = self._first_arrival or self._last_arrival
        self.work = ("", self.started)

    def evaluation(self, row: dict[str, Any]) -> None:
        """Record an evaluation."""
        self.evaluations.append(row)
        self.work = ("", self.started)

    def working(self, text: str) -> None:
        """Announce work that may take minutes without a record."""
        self.work = (text, time.monotonic())

    def worked(self, text: str) -> None:
        """Show the result of announced work."""
        self.note(text)

    def note(self, text: str) -> None:
        """Show a message once."""
        self.console.print(Text(text), soft_wrap=True)

    def finished(self, summary: dict[str, Any], run_dir: Path, returns: Sequence[float] = ()) -> None:
        """End the display with the final table, the run directory and further commands.

        Args:
          summary: figures of `summary.json`.
          run_dir: directory of the run.
          returns: evaluated returns, oldest first.
        """
        self.close()
        print_summary(self.console, {"train_return": self.latest.get("train_return"), **summary}, run_dir, returns)

    def close(self) -> None:
        """End the display; a second call does nothing."""

    def leave(self) -> None:
        """End the display of a stopped run, with the command to resume it."""
        if self.farewell is not None:
            self.note(self.farewell())
        self.close()

    def seconds_left(self) -> float | None:
        """Real seconds to the last round at the pace so far; None until two calls have set a pace."""
        last_time, last_round = self._last_arrival
        first_time, first_round = self._first_arrival or self._last_arrival
        if last_round == first_round:
            return None
        pace = (last_time - first_time) / (last_round - first_round)
        return max(0.0, pace * (self.total_rounds - last_round) - (time.monotonic() - last_time))


class LineDisplay(Display):
    """One line per evaluation and one every ten seconds, for pipes, logs and `run.progress=false`."""

    def __init__(self, console: Console, title: str, total_rounds: int, clock: str = "simulated") -> None:
        super().__init__(console, title, total_rounds, clock)
        self._last_line = -float("inf")
        self.note(title)

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        super().rounds(rows)
        if time.monotonic() - self._last_line < LINE_EVERY_SECONDS:
            return
        self._last_line = time.monotonic()
        latest = self.latest
        self.note(
            f"round {latest['round']}/{self.total_rounds}  {fmt.count(latest['env_steps'])} steps  "
            f"{fmt.compact(latest.get('steps_per_second'))} steps/s  "
            f"return {fmt.significant(latest.get('train_return'))}  "
            f"staleness {fmt.number(latest.get('staleness_mean'))} (max {fmt.count(latest.get('staleness_max'))})  "
            + (f"data lag {_data_lag(latest)}  " if _has_lag(latest) else "")
            + (f"gate {_gate(latest)}  escaped {fmt.escapes(latest)}  " if _has_gate(latest) else "")
            + f"{self.clock} {fmt.duration(latest.get('simulated_seconds'))}  {fmt.dollars(latest.get('cost_usd'))}  "
            f"ETA {fmt.duration(self.seconds_left())}"
        )

    def evaluation(self, row: dict[str, Any]) -> None:
        super().evaluation(row)
        self.note(
            f"evaluation at {fmt.count(row['env_steps'])} steps: return {_evaluated(row)}  "
            f"{self.clock} {fmt.duration(row.get('simulated_seconds'))}  {fmt.dollars(row.get('cost_usd'))}"
        )

    def working(self, text: str) -> None:
        super().working(text)
        self.note(text)


class PanelDisplay(Display):
    """Panel of the latest values; subclasses draw it."""

    def __init__(self, console: Console, title: str, total_rounds: int, clock: str = "simulated") -> None:
        super().__init__(console, title, total_rounds, clock)
        self._spinner = Spinner("dots")

    def panel(self) -> RenderableType:
        """Current panel."""
        parts: list[RenderableType] = [self._bar(), self._values()] if self.latest else []
        if self.work[0] or not parts:
            parts.append(self._working())
        body = Group(*parts)
        title = Text(self.title, style="bold")
        return Panel(body, title=title, title_align="left", width=min(WIDTH, self.console.width))

    def _working(self) -> RenderableType:
        text, since = self.work
        self._spinner.update(text=Text(f"{text or 'starting'}  {fmt.duration(time.monotonic() - since)}"))
        return self._spinner

    def _bar(self) -> Table:
        done = self.latest["round"]
        line = Table.grid(padding=(0, 2), expand=True)
        line.add_column(ratio=1)
        line.add_column(no_wrap=True)
        line.add_column(no_wrap=True)
        line.add_row(
            ProgressBar(total=self.total_rounds, completed=done),
            f"round [bold]{done}/{self.total_rounds}[/]",
            f"ETA [bold]{fmt.duration(self.seconds_left())}[/]",
        )
        return line

    def _values(self) -> Table:
        latest = self.latest
        returns = [row["eval_return_mean"] for row in self.evaluations]
        history = fmt.sparkline(fmt.spread([value for value in returns if value is not None]))
        evaluated = _evaluated(self.evaluations[-1]) if self.evaluations else fmt.MISSING
        trained = fmt.significant(latest.get("train_return"))
        rows: list[tuple[str, ...]] = [
            ("return", f"train {_bold(trained)}", f"eval {_bold(evaluated)}", history),
            (
                "speed",
                f"{_bold(fmt.compact(latest.get('steps_per_second')))} env steps/s",
                f"{fmt.count(latest['env_steps'])} env steps",
                f"{fmt.count(latest.get('updates'))} updates",
            ),
            (
                "staleness",
                f"mean {_bold(fmt.number(latest.get('staleness_mean'), 2))}",
                f"max {_bold(fmt.count(latest.get('staleness_max')))}",
                f"group {fmt.number(latest.get('group_size'))}",
            ),
            (
                self.clock,
                f"time {_bold(fmt.duration(latest.get('simulated_seconds')))}",
                f"cost {_bold(fmt.dollars(latest.get('cost_usd')))}",
                f"occupancy {fmt.percent(latest.get('occupancy'))}",
            ),
        ]
        if _has_gate(latest):
            rows.insert(-1, ("gate", f"β {_bold(_gate(latest))}", f"escaped {fmt.escapes(latest)}", ""))
        if _has_lag(latest):
            mean, most = (fmt.number(latest.get(key), 1) for key in ("data_lag", "data_lag_max"))
            rows.insert(-1, ("data lag", f"mean {_bold(mean)}", f"max {_bold(most)}", ""))
        troubles = {
            "non-finite gradients": latest.get("nonfinite_gradients"),
            "dropped": latest.get("dropped"),
            "failed": latest.get("failed"),
        }
        if any(troubles.values()):
            texts = [f"[yellow]{name} {fmt.count(value)}[/]" for name, value in troubles.items() if value]
            rows.append(("counted", *texts, *[""] * (3 - len(texts))))
        table = Table.grid(padding=(0, 3))
        table.add_column(style="cyan", no_wrap=True)
        if self.console.width < NARROW:
            for name, *values in rows:
                table.add_row(name, "  ".join(filter(None, values)))
            return table
        for _ in range(3):
            table.add_column(no_wrap=True)
        for row in rows:
            table.add_row(*row)
        return table


class LiveDisplay(PanelDisplay):
    """Panel that redraws itself in place, at most REFRESH_PER_SECOND times a second, from its own thread."""

    def __init__(self, console: Console, title: str, total_rounds: int, clock: str = "simulated") -> None:
        super().__init__(console, title, total_rounds, clock)
        self._live = Live(get_renderable=self.panel, console=console, refresh_per_second=REFRESH_PER_SECOND)
        self._live.start()

    def close(self) -> None:
        self._live.stop()


class NotebookDisplay(PanelDisplay):
    """Output of a notebook's cell: messages above the panel, which the final table replaces.

    It is redrawn at events, at most REFRESH_PER_SECOND times a second. rich's own display would need ipywidgets.
    """

    def __init__(self, title: str, total_rounds: int, clock: str = "simulated") -> None:
        from IPython.display import display  # notebooks have IPython

        self._notes: list[RenderableType] = []
        self._closed = False
        super().__init__(_page(), title, total_rounds, clock)
        self._drawn = time.monotonic()
        self._handle = display(_bundle(self.panel()), raw=True, display_id=True)

    def rounds(self, rows: list[dict[str, Any]]) -> None:
        super().rounds(rows)
        self._draw(time.monotonic() - self._drawn >= 1 / REFRESH_PER_SECOND)

    def evaluation(self, row: dict[str, Any]) -> None:
        super().evaluation(row)
        self._draw()

    def working(self, text: str) -> None:
        super().working(text)
        self._draw()

    def worked(self, text: str) -> None: ...

    def note(self, text: str) -> None:
        self._notes.append(Text(text))
        self._draw()

    def finished(self, summary: dict[str, Any], run_dir: Path, returns: Sequence[float] = ()) -> None:
        table = _page()
        print_summary(table, {"train_return": self.latest.get("train_return"), **summary}, run_dir, returns)
        self._closed = True
        self._notes.append(Text.from_ansi(table.export_text(styles=True)))
        self._draw()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._draw()

    def _draw(self, due: bool = True) -> None:
        if due:
            self._drawn = time.monotonic()
            parts = self._notes if self._closed else [*self._notes, self.panel()]
            self._handle.update(_bundle(Group(*parts)), raw=True)


def _page() -> Console:
    """Console that records its output, to be shown elsewhere."""
    return Console(file=io.StringIO(), record=True, width=WIDTH, force_jupyter=False, force_terminal=True)


def _bundle(renderable: RenderableType) -> dict[str, str]:
    """Output of a notebook's cell: HTML, with text as a fallback."""
    page = _page()
    page.print(renderable, soft_wrap=True)
    html = page.export_html(inline_styles=True, code_format=NOTEBOOK_HTML, clear=False)
    return {"text/plain": page.export_text(), "text/html": html}


def make_display(console: Console, title: str, total_rounds: int, progress: bool, clock: str = "simulated") -> Display:
    """Display of a run: a panel if there is a terminal or a notebook and `progress` is true, else lines.

    Args:
      console: console to show it on.
      title: title of the run.
      total_rounds: rounds of the run.
      progress: whether to draw a panel.
      clock: adjective for seconds, `simulated` or `measured`.
    """
    if console.is_jupyter:
        if progress:
            return NotebookDisplay(title, total_rounds, clock)
        console = Console(force_jupyter=False, width=LINE_WIDTH)  # collects lines in one output of the cell
    live = progress and console.is_terminal and not console.is_dumb_terminal
    return (LiveDisplay if live else LineDisplay)(console, title, total_rounds, clock)


def _has_gate(row: dict[str, Any]) -> bool:
    """Whether the rule of a run has a gate."""
    return row.get("gate") is not None or row.get("gate_escapes") is not None


def _has_lag(row: dict[str, Any]) -> bool:
    """Whether a run has independent actors, whose data are of several ages."""
    return row.get("data_lag_max") is not None


def _data_lag(row: dict[str, Any]) -> str:
    return f"{fmt.number(row['data_lag'])} (max {fmt.count(row.get('data_lag_max'))})"


def _gate(row: dict[str, Any]) -> str:
    return "open" if row.get("gate") is None else fmt.number(row["gate"], 2)


def _evaluated(row: dict[str, Any]) -> str:
    per_seed = row.get("per_seed", {}).get("eval_return_mean")
    value = fmt.over_seeds(row["eval_return_mean"], row.get("eval_return_ci95"), per_seed)
    return f"{value} ({row['actions']})" if row.get("actions") else value


def _bold(text: str) -> str:
    return f"[bold]{text}[/]"
