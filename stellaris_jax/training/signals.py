"""SIGINT, SIGTERM and SIGHUP: noted at once, and obeyed as soon as what is under way has been brought to an end."""

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
"""Signals that end a run. SIGHUP comes with the end of a terminal; a process of nohup ignores it, and goes on to."""
IMPATIENT = (signal.SIGTERM, signal.SIGHUP)
"""Signals whose senders kill a process that takes long to end."""
PATIENCE_SECONDS = 5.0
"""How long one of those waits for work that leaves nothing behind, such as compiling."""
FUSE_SECONDS = 3.0
"""How long a second signal waits for the process to end by itself."""


class Abandoned(KeyboardInterrupt):
    """A second signal came; what is still being computed need not be waited for."""

    def __init__(self, signum: int):
        super().__init__(f"abandoned by {signal.Signals(signum).name}")
        self.signum = signum


class Signals:
    """Within, the first of `SIGNALS` is only noted (`stopping` is set); a second one raises `Abandoned`.

    Python handles signals between two instructions of the main thread, which a compiled program may keep for minutes.
    So a thread of our own is woken by them. It tells what is being waited for, and ends the process where the main
    thread does not get to: after a second signal, and after one of `IMPATIENT` while only `transient` work is under
    way.

    Outside the main thread nothing is caught: whoever runs that has the signals. Threads that work for one program
    share one of these, which waits for what each of them has under way.

    Args:
      tell: shows a message; called from the thread.
      leave: called before the process is ended from there, and given a second.
    """

    def __init__(self, tell: Callable[[str], None], leave: Callable[[], None]):
        self.tell, self.leave = tell, leave
        self.stopping = threading.Event()
        self.caught: list[int] = []
        self._work: dict[int, tuple[str, bool | Callable[[], bool]]] = {}  # of each thread
        self._handled = 0
        self._previous: dict[signal.Signals, Any] = {}

    def stop(self, signum: int = signal.SIGTERM) -> None:
        """As if a first signal had come, for work that is stopped from elsewhere."""
        self.caught.append(signum)
        self.stopping.set()

    @contextmanager
    def during(self, work: str, transient: bool | Callable[[], bool] = False) -> Iterator[None]:
        """Name what is under way; `transient` work is of no use to anybody once it has been given up.

        Where that depends on when a signal comes, it is asked then, from the thread.
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
            caught = [one for one in SIGNALS if one != signal.SIGHUP or signal.getsignal(one) != signal.SIG_IGN]
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
        """In the main thread. The first signal is the thread's to note; a second one has its usual effect."""
        self._handled += 1
        if self._handled > 1:
            raise Abandoned(signum)

    def _watch(self) -> None:
        """In the thread: read the numbers of signals as they arrive, until the other end is closed."""
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
        """Take note of the first signal; whether the process is to end soon whatever happens."""
        under_way = list(self._work.values()) or [("what is under way", False)]
        impatient = signum in IMPATIENT and all(
            transient() if callable(transient) else transient for _, transient in under_way
        )
        limit = f" for at most {PATIENCE_SECONDS:.0f} s" if impatient else ""
        work = "; and for ".join(dict.fromkeys(text for text, _ in under_way))
        self.stopping.set()
        with suppress(OSError, SystemExit):  # of a terminal that is gone; rich ends a program then
            self.tell(f"{signum.name}: waiting{limit} for {work}; a second signal ends the run at once")
        return impatient

    def _end(self) -> None:
        """End the process from here; what has been saved is whole whenever that happens."""
        farewell = threading.Thread(target=self.leave, daemon=True)
        farewell.start()
        farewell.join(1.0)
        os._exit(128 + self.caught[-1])
