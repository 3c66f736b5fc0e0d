"""Consent to what a stored configuration would execute: nothing of a run is imported unless the user allowed it.

A configuration names code: its plug-ins, the module of `env.name=gymnasium/module:id`, and those of wrappers in
`env.kwargs.wrappers` that are not gymnasium's own, and texts in `env.kwargs` that lead to code or files
(`config.env_texts`). It may name services as well: trackers among `run.loggers`, the Ray cluster `live.address`, and an
environment that is downloaded (`config.downloads`). The user who types such a name consents by
typing it. A configuration that is *read*, from a run directory, may come from anybody, so `admit` stands between
reading it (`config.stored.from_yaml`, which imports nothing) and using it. Consent is one of these:

- the command line names the plug-in, module or service;
- `--trust`, or `trust=True` in Python;
- the environment variable `STELLARIS_JAX_TRUST=1`;
- a record in the user's state folder, over the bytes of `config.yaml` and of the sources that it names, written when
  this user's own command made the run, or was allowed to open it. Changed sources need consent again.

Code that this process has imported already, and plug-ins of installed packages, need none.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.config import env_texts, gym_wrappers
from stellaris_jax.config.downloads import downloads
from stellaris_jax.config.env_texts import JOB
from stellaris_jax.config.inputs import CONFIGURATION, digest_of, read_bytes
from stellaris_jax.config.outputs import appending
from stellaris_jax.config.schema import LONGEST, ConfigError, shown
from stellaris_jax.config.tree import Config
from stellaris_jax.registry import (
    RegistrationError,
    is_imported,
    is_installed,
    load_plugins,
    plugin_path,
    register,
    search_folder,
)

VARIABLE = "STELLARIS_JAX_TRUST"
"""Environment variable that allows everything, where it is `1`."""
SOURCES = (".py", ".pyc", ".so", ".pyd", ".dylib")
"""Endings of files that a module consists of; what Python keeps in `__pycache__` is not used (`admit`)."""
MOST = 20_000
"""Source files of a package that are looked at."""

PLAIN = re.compile(r"([a-z_.]+)=[\w./+-]*", re.ASCII)
"""An override whose value is one word or number."""
ELSEWHERE = ("plugins", "init_from", "resume", "trace", "executor", "live", "run", "hydra", "sweep")
"""Keys, and groups of keys, of a job that need consent: they name code, runs, or services."""

Trust = bool | Collection[str]
"""What the user allowed: everything (`True`), nothing, or the plug-ins, modules and services of these names."""


class Named(NamedTuple):
    """Code or a service that a configuration names.

    Attributes:
      key: the configuration's key.
      name: what it names: a plug-in's module or file, an environment's module, a logger, an address, a text.
      connects: it is a service that is connected to; else it is code that is imported, or a file that is opened.
    """

    key: str
    name: str
    connects: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether using it would execute something that this process has not executed before."""
        # The modules of wrappers may be there already, but a wrapper is called with arguments of the configuration.
        return (
            self.connects
            or self.key.startswith(env_texts.PREFIX)
            or not (is_imported(self.name) if self.key == "plugins" else self.name in sys.modules)
        )

    @property
    def does(self) -> str:
        """What using the configuration does with it."""
        if self.connects:
            return "downloads the models of" if self.key == "env.name" else "connects to"
        argument = self.key.startswith(env_texts.PREFIX) and self.key not in (gym_wrappers.KEY, env_texts.PREFIX + JOB)
        return "lets its environment open" if argument else "imports"


def code_of(config: Config) -> list[Named]:
    """Code, files and downloads that a configuration names, beside plug-ins of installed packages."""
    plugins = [Named("plugins", plugin_path(name)) for name in config.plugins if not is_installed(name)]
    # Suites are matched loosely, so the colon decides, whatever the suite is called.
    module, colon, _ = config.env.name.partition("/")[2].rpartition(":")
    jobs = config.env.kwargs.get(JOB, ())
    lines = [line for line in jobs if isinstance(line, str)] if isinstance(jobs, tuple) else []
    composed = [Named(f"env.kwargs.{JOB}", line) for line in lines if not _is_plain(line)]
    texts = [Named(key, text) for key, text in env_texts.leading(config.env.kwargs)]
    fetched = [Named("env.name", config.env.name, connects=True)] * downloads(config.env.name)
    return plugins + [Named("env.name", module)] * bool(colon) + _wrappers(config) + texts + composed + fetched


def _wrappers(config: Config) -> list[Named]:
    """Modules of gymnasium wrappers that do not come with gymnasium. A list that is no such thing is never used."""
    with suppress(ConfigError):
        own = [one for one in gym_wrappers.wrappers_of(config.env.kwargs) if one.exported is None]
        return [Named(gym_wrappers.KEY, module) for module in dict.fromkeys(one.module for one in own)]
    return []


def _is_plain(line: str) -> bool:
    """Whether an override that stands in a configuration can name neither code nor a run: one number or one word."""
    found = PLAIN.fullmatch(line)
    return found is not None and found[1].partition(".")[0] not in ELSEWHERE


def services_of(config: Config) -> list[Named]:
    """Services that training with a configuration connects to."""
    loggers = [name for name in config.run.loggers if getattr(register.logger.get(name), "connects", False)]
    found = [Named("run.loggers", name, connects=True) for name in loggers]
    if config.executor == "live" and config.live.address:
        found.append(Named("live.address", config.live.address, connects=True))
    return found


def admit(
    config: Config, path: Path, trust: Trust = False, training: bool = False, typed: Collection[str] = ()
) -> Config:
    """A stored configuration with its plug-ins imported, if the user consented.

    Args:
      config: what was read, perhaps with values of the command line in it.
      path: the file it was read from.
      trust: what the user allowed.
      training: it is trained with, so that services count as well.
      typed: keys that the command line gave itself.

    Raises:
      ConfigError: nobody allowed what it names, or a plug-in cannot be imported.
    """
    named = code_of(config) + (services_of(config) if training else [])
    pending = [one for one in named if one.is_pending and one.key not in typed and not _allows(trust, one)]
    for one in pending:
        if one.key == "plugins" and one.name.endswith(".py") and not os.path.isfile(one.name):
            reason = f"plugins={one.name} cannot be used: there is no such file"
            raise ConfigError(f"{path}: {reason}. Put it back, or write into this file where it is now.")
    text = _text(path) if any(one.is_pending for one in named) else b""
    if unknown := [one for one in pending if not _is_recorded(text, one)]:
        raise ConfigError(_refusal(path, unknown))
    # What is recorded may lie in the current folder, as it did when the user's command line named it.
    search_folder(one.name for one in pending if not one.connects and not one.name.endswith(".py"))
    for one in named:
        if one.is_pending and one.key not in typed:
            _record(text, one)
    if any(one.is_pending and not one.connects and not one.name.endswith(".py") for one in named):
        _leave_caches_alone()
    return imported(config, path)


def _leave_caches_alone() -> None:
    """Have modules compiled from their sources from now on, here and in child processes.

    What lies in `__pycache__` beside a module need not come from its source, and is in no record.
    """
    with suppress(RuntimeError):  # there is no home
        folder = str(state_folder() / "pycache")
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = folder


def imported(config: Config, path: Path | None = None) -> Config:
    """A configuration with its plug-ins imported, files by their absolute paths. Nobody is asked.

    Args:
      config: the configuration.
      path: the file it was read from, for messages.

    Raises:
      ConfigError: a plug-in cannot be imported.
    """
    try:
        return config.replace({"plugins": load_plugins(config.plugins)})
    except RegistrationError as error:
        if path is None:
            raise ConfigError(f"{error}.") from error
        raise ConfigError(f"{path}: {error}.") from error


def check_adds_nothing(config: Config, admitted: Config, place: str) -> None:
    """Raise ConfigError for a configuration that names code or services beside those of one that was admitted.

    Args:
      config: what is to be used.
      admitted: what the user consented to.
      place: where the configuration comes from.
    """
    known = code_of(admitted) + services_of(admitted)
    for one in code_of(config) + services_of(config):
        if one not in known:
            raise ConfigError(f"{place} names {one.key}={one.name}, which the configuration it belongs to does not.")


def remember(text: str, config: Config) -> str | None:
    """Record that this user's own command wrote a `config.yaml`, so that opening the run needs no other consent.

    Returns:
      Why that could not be recorded, where it could not: no run fails by it.
    """
    troubles = [_record(text.encode(), one) for one in code_of(config) + services_of(config)]
    return next((trouble for trouble in troubles if trouble), None)


def state_folder() -> Path:
    """The folder for what commands remember: below `XDG_STATE_HOME`, by default `~/.local/state`."""
    root = os.environ.get("XDG_STATE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".local" / "state") / "stellaris_jax"


def _allows(trust: Trust, one: Named) -> bool:
    if os.environ.get(VARIABLE) == "1":
        return True
    return trust if isinstance(trust, bool) else one.name in {*trust, *map(plugin_path, trust)}


def _refusal(path: Path, pending: Iterable[Named]) -> str:
    pending = list(pending)
    parts = [
        f"{does} {' and '.join(f'{one.key}={_printed(one.name)}' for one in pending if one.does == does)}"
        for does in dict.fromkeys(one.does for one in pending)
    ]
    names = " ".join(f"--plugin={shlex.quote(_printed(one.name))}" for one in pending)
    return (
        f"{path} {' and '.join(parts)}, which you have not allowed, or which changed since; read it first, then allow "
        f"it by {names} or --trust (in Python trust=True), or by {VARIABLE}=1."
    )


def _printed(name: str) -> str:
    """A name on one line, and not too long a one."""
    return name if name.isprintable() and len(name) < LONGEST else shown(name)


def _text(path: Path) -> bytes:
    try:
        return read_bytes(path, CONFIGURATION)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error.strerror}.") from None


def _is_recorded(text: bytes, one: Named) -> bool:
    if one.key.endswith(JOB):
        return False  # a record would not cover the sources that its lines lead to
    return _holds(_line(text, one))


def _holds(line: bytes) -> bool:
    """Whether the record has a line."""
    try:
        return line in read_bytes(state_folder() / "trusted", 2**30).splitlines(keepends=True)
    except (OSError, RuntimeError):
        return False


def _record(text: bytes, one: Named) -> str | None:
    """Add a line to the record, unless it is there; why not, where that cannot be."""
    try:
        line = _line(text, one)  # once, for it reads all sources
        if _holds(line):
            return None
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with appending(folder / "trusted") as file:
            # The first line end closes a line that a full disk cut short.
            file.write(b"\n" + line)
    except (OSError, RuntimeError) as error:  # the latter where there is no home
        return getattr(error, "strerror", None) or str(error)
    return None


def _line(text: bytes, one: Named) -> bytes:
    """The line that stands for a configuration's bytes, one thing that it names, and the sources of that.

    Each thing has a line of its own: who allowed a plug-in has not allowed a service beside it.
    """
    digest = sha256()
    for part in (text, one.key.encode(), os.fsencode(one.name)):
        digest.update(sha256(part).digest())
    for file in _sources(one):
        digest.update(sha256(os.fsencode(file)).digest() + _contents(file))
    return digest.hexdigest().encode() + b"\n"


def _sources(one: Named) -> Iterator[Path]:
    """The files of a plug-in or a module: of a package all of its sources, for it may import any. Imports nothing.

    The source of a text of an environment's is the file that it leads to, or the module.
    """
    if one.key == "plugins" and one.name.endswith(".py"):
        yield Path(one.name)
        return
    name: Path | str = one.name
    if one.key.startswith(env_texts.PREFIX):
        name = env_texts.source_of(one.name)
    if isinstance(name, Path):
        yield name
        return
    top = name.partition(".")[0]
    try:
        named = re.fullmatch(r"\w+", top) is not None
        spec = (find_spec(top) or PathFinder.find_spec(top, [os.getcwd()])) if named else None
    except (ImportError, ValueError):
        spec = None
    if spec is None:
        return
    if archive := getattr(spec.loader, "archive", None):  # a module in a zip file
        yield Path(archive)
        return
    if spec.submodule_search_locations is None:
        if spec.has_location and spec.origin:
            yield Path(spec.origin)
        return
    count, seen = 0, set[str]()
    for place in sorted(spec.submodule_search_locations):
        for folder, folders, names in os.walk(place, followlinks=True):
            if (real := os.path.realpath(folder)) in seen or os.path.basename(folder) == "__pycache__":
                folders.clear()
                continue
            seen.add(real)
            folders.sort()
            for name in sorted(name for name in names if name.endswith(SOURCES)):
                yield Path(folder, name)
                count += 1
                if count >= MOST:
                    return


def _contents(file: Path) -> bytes:
    """Digest of a file's contents, or of its absence."""
    try:
        return bytes.fromhex(digest_of(file))
    except OSError:
        return bytes(sha256().digest_size)
