"""Handling of SIGINT, SIGTERM and SIGHUP: the run stops once the current work has ended."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType, TracebackType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""Signals that end a run. SIGHUP comes with the end of a terminal; under nohup it stays ignored."""
IMPATIENT = (signal.SIGTERM, signal.SIGHUP)
"""Signals whose senders kill a process that takes long to end."""
PATIENCE_SECONDS = 5.0
"""Seconds that these signals wait for work that leaves nothing behind, such as compiling."""
FUSE_SECONDS = 3.0
"""Seconds that the process gets to end by itself after a second signal."""


class Abandoned(KeyboardInterrupt):
    """Error: a second signal came; unfinished work is abandoned."""

    def __init__(self, signum: int):
        super().__init__(f"abandoned by {signal.Signals(signum).name}")
        self.signum = signum


class Signals:
    """Context in which the first of `SIGNALS` sets `stopping`, and a second one raises `Abandoned`.

    Python handles signals between two instructions of the main thread, which a compiled program may block for minutes.
    Therefore signals wake a separate thread. The thread reports the current work. It ends the process if the main
    thread does not react: after a second signal, and after one of `IMPATIENT` if all work is `transient`.

    Outside the main thread no signal is caught; the program that owns the main thread handles them. Threads of one
    program share one `Signals`, which waits for the current work of each.

    Args:
      tell: shows a message; called from the separate thread.
      leave: called before that thread ends the process; it has one second.
    """

    def __init__(self, tell: Callable[[str], None], leave: Callable[[], None]):
        self.tell, self.leave = tell, leave
        self.stopping = threading.Event()
        self.caught: list[int] = []
        self._work: dict[int, tuple[str, bool | Callable[[], bool]]] = {}  # by thread
        self._handled = 0
        self._previous: dict[signal.Signals, Any] = {}

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """Stop as after a first signal, for work that is stopped by another process."""
        self.caught.append(signum)
        self.stopping.set()

    @contextmanager
    def during(self, work: str, transient: bool | Callable[[], bool] = False) -> Iterator[None]:
        """Context that names the current work.

        Args:
          work: name of the work, for the message.
          transient: abandoned work is worthless, so a signal need not wait for it. A function is called when a signal
            comes, from the separate thread.
        """
        thread = threading.get_ident()
        before = self._work.get(thread)
        self._work[thread] = work, transient
        try:
            yield
        finally:
            if before is None:
                del self._work[thread]
            else:
                self._work[thread] = before

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._reader, self._writer = socket.socketpair()
            self._writer.setblocking(False)
            caught = [
                signum for signum in SIGNALS if signum != signal.SIGHUP or signal.getsignal(signum) != signal.SIG_IGN
            ]
            self._previous = {signum: signal.signal(signum, self._handle) for signum in caught}
            self._previous_fd = signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
            self._thread = threading.Thread(target=self._watch, name="signals", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._previous:
            return
        for signum, handler in self._previous.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(self._previous_fd)
        self._writer.close()
        self._thread.join()
        self._reader.close()

    def _handle(self, signum: int, frame: FrameType | None) -> None:
        """Handler in the main thread: leave the first signal to the other thread, raise Abandoned at a second."""
        self._handled += 1
        if self._handled > 1:
            raise Abandoned(signum)

    def _watch(self) -> None:
        """Body of the separate thread: read signal numbers as they arrive, until the socket is closed."""
        deadline: float | None = None
        while True:
            self._reader.settimeout(None if deadline is None else max(0.01, deadline - time.monotonic()))
            try:
                number = self._reader.recv(1)
            except TimeoutError:
                self._end()
                continue
            if not number:
                return
            if number[0] not in self._previous:
                continue
            self.caught.append(number[0])
            if len(self.caught) > 1:
                deadline = time.monotonic() + FUSE_SECONDS
            elif self._note(signal.Signals(number[0])):
                deadline = time.monotonic() + PATIENCE_SECONDS

    def _note(self, signum: signal.Signals) -> bool:
        """Note the first signal and report it; returns whether the process has to end soon."""
        under_way = list(self._work.values()) or [("what is under way", False)]
        impatient = signum in IMPATIENT and all(
            transient() if callable(transient) else transient for _, transient in under_way
        )
        limit = f" for at most {PATIENCE_SECONDS:.0f} s" if impatient else ""
        work = "; and for ".join(dict.fromkeys(text for text, _ in under_way))
        self.stopping.set()
        with suppress(OSError, SystemExit):  # the terminal may be gone; rich exits then
            self.tell(f"{signum.name}: waiting{limit} for {work}; a second signal ends the run at once")
        return impatient

    def _end(self) -> None:
        """End the process from this thread; saved files are complete at any time."""
        farewell = threading.Thread(target=self.leave, daemon=True)
        farewell.start()
        farewell.join(1.0)
        os._exit(128 + self.caught[-1])
