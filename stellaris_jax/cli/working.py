"""Status of slow work on stderr: a spinner on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from typing import Any, TextIO

from stellaris_jax.base.errors import printable

REFRESH_PER_SECOND = 8
PATIENCE = 20.0
"""Seconds between two plain lines that say how far the work is."""

Tell = Callable[[str], None]
"""Says how far the work is, such as `34 of 200 rounds`."""


@contextmanager
def working(text: str, when: bool = True) -> Iterator[Tell]:
    """Context that shows a status on stderr while it lasts; stdout is left to results.

    On a terminal a spinner counts the seconds. It is erased at the end, or before the first result is printed.
    The context gives a function that says how far the work is: beside the spinner, elsewhere in a line every
    `PATIENCE` seconds.

    Args:
      text: names the work, such as `playing 128 episodes of gymnax/CartPole-v1`.
      when: false shows nothing, for work that will be refused at once.
    """
    text = printable(text)
    if not when:
        yield lambda progress: None
    elif sys.stderr.isatty() and os.environ.get("TERM", "dumb") not in ("dumb", "unknown"):
        with _spinning(text) as tell:
            yield tell
    else:
        _print(text)
        last = time.monotonic()

        def tell(progress: str) -> None:
            nonlocal last
            if time.monotonic() - last >= PATIENCE:
                last = time.monotonic()
                _print(f"{text}: {printable(progress)}")

        yield tell


def _print(line: str) -> None:
    with suppress(OSError):  # a closed stderr must not stop the work
        print(line, file=sys.stderr, flush=True)


@contextmanager
def _spinning(text: str) -> Iterator[Tell]:
    # Imported late, so that pipes do not wait for rich.
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    started, spinner, shown = time.monotonic(), Spinner("dots"), text

    def tell(progress: str) -> None:
        nonlocal shown
        shown = f"{text}: {printable(progress)}"

    def line() -> Spinner:
        spinner.update(text=Text(f"{shown}  {time.monotonic() - started:.0f} s"))
        return spinner

    console = Console(stderr=True)
    refresh = REFRESH_PER_SECOND
    live = Live(get_renderable=line, console=console, refresh_per_second=refresh, transient=True, redirect_stdout=False)
    with live, redirect_stdout(_Results(sys.stdout, live.stop)):  # type: ignore[type-var]
        live.refresh()
        yield tell


class Stream:
    """Stream that forwards to another one; subclasses change its methods."""

    def __init__(self, stream: TextIO):
        self.stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


class _Results(Stream):
    """Standard output that erases a spinner before its first write."""

    def __init__(self, stream: TextIO, erase: Callable[[], None]):
        super().__init__(stream)
        self.erase = erase

    def write(self, text: str) -> int:
        self.erase()  # a second call does nothing
        return self.stream.write(text)
