"""Broker: Ray's driver in a separate process, because Ray kills its driver process when its raylet dies.

The trainer keeps its state. It sends the broker requests over a pipe, one after the other, for the methods of
`stellaris_jax.live.cluster.Processes`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from multiprocessing.connection import Connection, Pipe
from typing import Any, NamedTuple

import jax

from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.base.machine import Part
from stellaris_jax.base.registry import load_plugins, register
from stellaris_jax.base.watch import POLL_SECONDS, Silence
from stellaris_jax.config.tree import Config
from stellaris_jax.live.pool import Call, Done, Pool
from stellaris_jax.live.vitals import OUT_OF_REACH_SECONDS, ClusterDied, Vitals, Watch

SILENCE_SECONDS = 60.0
"""Shortest timeout, in seconds, for Ray's answer; large arrays and starts on a busy machine take a while."""
START_SECONDS = 300.0
"""Timeout, in seconds, of Ray's start."""
END_SECONDS = 30.0
"""Timeout, in seconds, of Ray's end."""
FUNCTION = 240 * 2**20
"""Bytes of a learner's or actor's process with a small program: 240 to 270 MB of proportional set size with
CartPole."""
RAY = 600 * 2**20
"""Bytes of Ray's programs (375 MB, counted as above) and of the broker (240 MB), without objects."""
PROGRAM = "import sys; sys.path[:] = {path!r}; from stellaris_jax.live.broker import main; main({number})"


class Reference(NamedTuple):
    """Reference to a value that the broker holds, by its number."""

    number: int


class Handle:
    """Handle of a value that the broker holds; the value is dropped with this object.

    Args:
      number: number of the value.
      drop: called with the number at the end.
    """

    def __init__(self, number: int, drop: Callable[[int], object]):
        self.number, self._drop = number, drop

    def __del__(self) -> None:
        self._drop(self.number)

    def __reduce__(self) -> tuple[type[Reference], tuple[int]]:
        return Reference, (self.number,)


class Failure(NamedTuple):
    """Exception of the broker.

    Attributes:
      kind: name of its class.
      text: its message.
      trace: its traceback.
    """

    kind: str
    text: str
    trace: str

    def raised(self) -> Exception:
        """Exception to raise in the trainer."""
        if self.kind == "ConfigError":
            return ConfigError(self.text)
        text = self.text if self.kind == "RunError" else f"Ray cannot go on: {self.kind}: {self.text}"
        error = RunError(text)
        error.add_note(self.trace)
        return error


@register.pool("ray")
class Broker(Pool):
    """Pool of processes on Ray, through a broker.

    Args:
      config: configuration of the run.
      actors: largest number of actors.

    Raises:
      ConfigError: the cluster cannot be joined, or lacks the requested resources.
      ClusterDied: the cluster has died meanwhile, or does not answer.
    """

    def __init__(self, config: Config, actors: int):
        self._dropped: list[int] = []
        self._count, self._died = 0, ""
        self._over = threading.Event()
        self._allowed, self._silence = START_SECONDS, Silence()
        self._busy = False
        self._watch: Watch | None = None
        self._pipe, broker_end = Pipe()
        program = PROGRAM.format(path=sys.path, number=broker_end.fileno())
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", r"os\.fork\(\) was called")
            self._process = subprocess.Popen(
                [sys.executable, "-c", program], pass_fds=[broker_end.fileno()], stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        broker_end.close()
        threading.Thread(target=self._watch_cluster, name="cluster", daemon=True).start()
        try:
            vitals: Vitals = self._ask("start", _joining(config), actors)
        except BaseException:
            self.close()
            raise
        self._allowed = max(config.live.timeout, SILENCE_SECONDS)
        self.vitals = vitals
        self._watch = Watch(vitals, min(config.live.timeout, OUT_OF_REACH_SECONDS))

    @classmethod
    def check_installed(cls) -> None:
        """Raise ConfigError if Ray cannot be imported."""
        if find_spec("ray") is None:
            install = "pip install 'stellaris-jax[ray]'"
            raise ConfigError(f"live.pool=ray needs Ray; install it by: {install}; or set live.pool=threads.")
        # Tried in a separate process, because this one never loads Ray.
        attempt = subprocess.run([sys.executable, "-P", "-c", "import ray"], capture_output=True, text=True)
        if attempt.returncode != 0:
            reason = (attempt.stderr.strip() or "no reason given").splitlines()[-1]
            raise ConfigError(f"live.pool=ray needs Ray, which cannot be imported ({reason}); install it anew.")

    @classmethod
    def memory(cls, config: Config, actors: int) -> Iterator[Part]:
        """Processes and Ray's own programs; they are elsewhere if a cluster is joined."""
        if not config.live.address:
            learners = config.system.learners
            settings = tuple(
                f"{key}={number}"
                for key, number in (("system.learners", learners), ("live.actors", config.live.actors))
                if number not in (0, 1)
            )
            yield Part("processes of learners and actors", 0, (learners + actors) * FUNCTION, settings)
            yield Part("Ray", 0, RAY, ("executor=live",))

    def put(self, value: Any) -> Handle:
        """Store a value in the cluster; returns its handle for calls. The value is sent to every node once."""
        self._count += 1
        self._send("put", self._count, value)
        return Handle(self._count, self._dropped.append)

    def get(self, handle: Any) -> Any:
        """Value of a handle."""
        return self._ask("get", handle)

    def submit(self, call: Call, *arguments: Any) -> None:
        """Call a learner's or an actor's process; the process is started if necessary."""
        self._send("submit", call, *arguments)

    def wait(self) -> list[Done]:
        """Wait for at least one invocation to end; returns those that ended, or nothing if none is under way."""
        done: list[Done] = self._ask("wait")
        return done

    def cool(self) -> None:
        """End all idle processes."""
        self._send("cool")

    def close(self) -> None:
        """End all processes, and the cluster if this process started it."""
        self._over.set()
        self._pipe.close()
        try:
            self._process.wait(0.0 if self._died else END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, name: str, *arguments: Any) -> Any:
        """Send a request and return the broker's answer."""
        self._send(name, *arguments)
        return self._answer()

    def _send(self, name: str, *arguments: Any) -> None:
        dropped = [self._dropped.pop() for _ in range(len(self._dropped))]
        self._silence.beat()
        self._busy = True
        try:
            self._pipe.send((name, dropped, arguments))
        except OSError:
            self._answer()  # raises the reason
        self._busy = False

    def _answer(self) -> Any:
        self._silence.beat()
        self._busy = True
        try:
            while (answer := self._pipe.recv()) is BEAT:
                self._silence.beat()
        except (OSError, EOFError):
            raise self._death() from None
        finally:
            self._busy = False
        if isinstance(answer, Failure):
            raise answer.raised()
        return answer[0]

    def _watch_cluster(self) -> None:
        """Body of the watching thread: kill the broker if the cluster dies or hangs, so that no call blocks."""
        while not self._over.wait(POLL_SECONDS):
            if self._process.poll() is not None:
                return  # the next request will notice
            died = self._watch.died() if self._watch is not None else ""
            silent = self._silence.seconds()
            if not died and self._busy and silent > self._allowed:
                died = f"Ray has not answered for {silent:.0f} seconds"
            if died:
                self._died = died
                self._process.kill()
                return

    def _death(self) -> ClusterDied:
        """Cause of death as an exception, once the broker is gone."""
        code = self._process.wait()
        driver = f"Ray's driver (process {self._process.pid})"
        if not self._died and code < 0:
            self._died = f"{driver} was ended by {signal.Signals(-code).name}"
        if not self._died and self._watch is not None:  # Ray has killed it
            self._died = self._watch.died()
        self._died = self._died or f"{driver} has ended with exit code {code}"
        return ClusterDied(self._died + (self.vitals.about_logs if self._watch is not None else "") + ".")


def _joining(config: Config) -> Config:
    """Configuration with the address of the cluster that this process has already joined, if any."""
    ray = sys.modules.get("ray")
    if config.live.address or ray is None or not ray.is_initialized():
        return config
    return config.replace({"live.address": ray.get_runtime_context().gcs_address})


BEAT = None
"""Answer that only says that the broker is alive."""


class _Server:
    """Server in the broker's process: answers requests until the pipe is closed."""

    def __init__(self, pipe: Connection):
        self._pipe, self._held = pipe, dict[int, Any]()
        self._pool: Any = None
        self._beaten = time.monotonic()

    def serve(self) -> None:
        """Serve requests. Raises EOFError once the pipe is closed."""
        while True:
            name, dropped, arguments = self._pipe.recv()
            for number in dropped:
                del self._held[number]
            self._serve(name, [self._held[x.number] if isinstance(x, Reference) else x for x in arguments])

    def _serve(self, name: str, arguments: list[Any]) -> None:
        if name == "start":
            self._start(*arguments)
        elif name == "put":
            number, value = arguments
            self._held[number] = self._pool.put(value)
        elif name in ("get", "wait"):
            self._pipe.send((getattr(self._pool, name)(*arguments),))
        else:
            getattr(self._pool, name)(*arguments)

    def _start(self, config: Config, actors: int) -> None:
        load_plugins(config.plugins)  # pickle needs the classes of states
        from stellaris_jax.live.cluster import Processes

        self._pool = Processes(config, actors, self._beat)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)  # the trainer ends the broker
        if session := self._pool.vitals.session:
            log = os.open(f"{session}/logs/driver.err", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            for stream in (1, 2):
                os.dup2(log, stream)
        self._pipe.send((self._pool.vitals,))

    def _beat(self) -> None:
        """Report that the broker is alive, and check that the trainer is."""
        if self._pipe.poll():  # the trainer sends nothing before the answer, so the pipe is closed
            raise EOFError
        if time.monotonic() - self._beaten > 1.0:
            self._beaten = time.monotonic()
            self._pipe.send(BEAT)

    def close(self) -> None:
        """End all processes."""
        self._held.clear()
        if self._pool is not None:
            self._pool.close()


def main(number: int) -> None:
    """Run the broker.

    Args:
      number: file descriptor of the pipe.
    """
    jax.config.update("jax_platforms", "cpu")  # in case a plug-in starts JAX: nothing is computed here
    pipe = Connection(number)
    served = _Server(pipe)
    try:
        served.serve()
    except (EOFError, OSError):
        pass
    except Exception as error:
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        with suppress(OSError):
            pipe.send(Failure(type(error).__name__, text, traceback.format_exc()))
    finally:
        served.close()
