"""Consent to the code of a stored configuration: nothing that a run names is imported unless the user allowed it.

A configuration names code: its plug-ins, the module of `env.name=gymnasium/module:id`, third-party wrappers in
`env.kwargs.wrappers`, and texts in `env.kwargs` that lead to code or files (`config.env_texts`). It may also name
services: trackers among `run.loggers`, the Ray cluster `live.address`, and an environment that is downloaded
(`config.downloads`). A user who types such a name consents by typing it. A configuration that is *read* from a run
directory may come from anybody. So `admit` stands between reading it (`config.stored.from_yaml`, which imports
nothing) and using it. Each of these is consent:

- the command line names the plug-in, module or service;
- `--trust`, or `trust=True` in Python;
- the environment variable `STELLARIS_JAX_TRUST=1`;
- a record in the user's state folder, over the bytes of `config.yaml` and of the sources that it names. It is written
  when this user's own command made the run, or was allowed to open it. Changed sources need consent again.

Code that this process has imported already, and plug-ins of installed packages, need no consent.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from hashlib import sha256
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import CONFIGURATION, digest_of, read_bytes
from stellaris_jax.base.outputs import appending
from stellaris_jax.base.registry import (
    RegistrationError,
    is_imported,
    is_installed,
    load_plugins,
    plugin_path,
    register,
    search_folder,
)
from stellaris_jax.config import env_texts, gym_wrappers
from stellaris_jax.config.downloads import downloads
from stellaris_jax.config.env_texts import JOB
from stellaris_jax.config.old_options import corrected
from stellaris_jax.config.schema import LONGEST, shown
from stellaris_jax.config.tree import Config

VARIABLE = "STELLARIS_JAX_TRUST"
"""Environment variable that allows everything if it is `1`."""
SOURCES = (".py", ".pyc", ".so", ".pyd", ".dylib")
"""Endings of the files of a module. Python's own `__pycache__` is not used (see `admit`)."""
MOST = 20_000
"""Most source files of a package that are read."""

PLAIN = re.compile(r"([a-z_.]+)=[\w./+-]*", re.ASCII)
"""Pattern of an override whose value is one word or number."""
ELSEWHERE = ("plugins", "init_from", "resume", "trace", "executor", "live", "run", "hydra", "sweep")
"""Keys, and groups of keys, of a job that need consent: they name code, runs, or services."""

Trust = bool | Collection[str]
"""Consent of the user: to everything (`True`), to nothing, or to plug-ins, modules and services of these names."""


class Named(NamedTuple):
    """Code or service that a configuration names.

    Attributes:
      key: key of the configuration.
      name: plug-in's module or file, environment's module, logger, address, or text.
      connects: true for a service that is connected to; false for code that is imported, or a file that is opened.
    """

    key: str
    name: str
    connects: bool = False

    @property
    def is_pending(self) -> bool:
        """Whether using it would execute code that this process has not executed before."""
        # A wrapper's module may be imported already, but the configuration decides the wrapper's arguments.
        return (
            self.connects
            or self.key.startswith(env_texts.PREFIX)
            or not (is_imported(self.name) if self.key == "plugins" else self.name in sys.modules)
        )

    @property
    def does(self) -> str:
        """Verb for messages: the effect of using the configuration on it."""
        if self.connects:
            return "downloads the models of" if self.key == "env.name" else "connects to"
        argument = self.key.startswith(env_texts.PREFIX) and self.key not in (gym_wrappers.KEY, env_texts.PREFIX + JOB)
        return "lets its environment open" if argument else "imports"


def code_of(config: Config) -> list[Named]:
    """Code, files and downloads that a configuration names, except plug-ins of installed packages."""
    plugins = [Named("plugins", plugin_path(name)) for name in config.plugins if not is_installed(name)]
    # Spellings of suites vary, so the colon decides, not the suite's name.
    module, colon, _ = config.env.name.partition("/")[2].rpartition(":")
    jobs = config.env.kwargs.get(JOB, ())
    lines = [line for line in jobs if isinstance(line, str)] if isinstance(jobs, tuple) else []
    composed = [Named(f"env.kwargs.{JOB}", line) for line in lines if not _is_plain(line)]
    texts = [Named(key, text) for key, text in env_texts.leading(config.env.kwargs)]
    fetched = [Named("env.name", config.env.name, connects=True)] * downloads(config.env.name)
    return plugins + [Named("env.name", module)] * bool(colon) + _wrappers(config) + texts + composed + fetched


def _wrappers(config: Config) -> list[Named]:
    """Modules of third-party gymnasium wrappers; empty for an invalid list, which is never used."""
    with suppress(ConfigError):
        wrappers = [wrapper for wrapper in gym_wrappers.wrappers_of(config.env.kwargs) if wrapper.exported is None]
        return [Named(gym_wrappers.KEY, module) for module in dict.fromkeys(wrapper.module for wrapper in wrappers)]
    return []


def _is_plain(line: str) -> bool:
    """Whether a stored override can name neither code nor a run, because its value is one number or word."""
    match = PLAIN.fullmatch(line)
    return match is not None and match[1].partition(".")[0] not in ELSEWHERE


def services_of(config: Config) -> list[Named]:
    """Services that training with a configuration connects to."""
    loggers = [name for name in config.run.loggers if getattr(register.logger.get(name), "connects", False)]
    services = [Named("run.loggers", name, connects=True) for name in loggers]
    if config.executor == "live" and config.live.address and config.live.pool != "threads":
        services.append(Named("live.address", config.live.address, connects=True))
    return services


def admit(
    config: Config, path: Path, trust: Trust = False, training: bool = False, typed: Collection[str] = ()
) -> Config:
    """Import the plug-ins of a stored configuration, if the user consented to all that it names.

    Args:
      config: stored configuration, possibly with values of the command line.
      path: file of the stored configuration.
      trust: what the user allowed.
      training: whether the configuration is trained with, so that services need consent as well.
      typed: keys that the command line itself sets, which need no further consent.

    Returns:
      The configuration, with plug-in files as absolute paths.

    Raises:
      ConfigError: nobody allowed what it names, or a plug-in cannot be imported.
    """
    named = code_of(config) + (services_of(config) if training else [])
    pending = [item for item in named if item.is_pending and item.key not in typed and not _allows(trust, item)]
    for item in pending:
        if item.key == "plugins" and item.name.endswith(".py") and not os.path.isfile(item.name):
            reason = f"plugins={item.name} cannot be used: there is no such file"
            raise ConfigError(f"{path}: {reason}. Put it back, or write into this file where it is now.")
    text = _text(path) if any(item.is_pending for item in named) else b""
    if unknown := [item for item in pending if not _is_recorded(text, item)]:
        raise ConfigError(_refusal(path, unknown))
    # A recorded module may lie in the current folder, as it did when the user's command line named it.
    search_folder(item.name for item in pending if not item.connects and not item.name.endswith(".py"))
    for item in named:
        if item.is_pending and item.key not in typed:
            _record(text, item)
    if any(item.is_pending and not item.connects and not item.name.endswith(".py") for item in named):
        _leave_caches_alone()
    # Imported late, because an exported policy is loaded without YAML and OmegaConf, and its loader imports this file.
    from stellaris_jax.config.stored import read_yaml

    return corrected(imported(config, path), partial(read_yaml, path))


def _leave_caches_alone() -> None:
    """Have Python compile modules from their sources from now on, here and in child processes.

    A `__pycache__` folder next to a module need not match its source, and no record covers it.
    """
    with suppress(RuntimeError):  # no home directory
        folder = str(state_folder() / "pycache")
        sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = folder


def imported(config: Config, path: Path | None = None) -> Config:
    """Import the plug-ins of a configuration without asking for consent.

    Args:
      config: the configuration.
      path: file it was read from, for messages.

    Returns:
      The configuration, with plug-in files as absolute paths.

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
    """Raise ConfigError if a configuration names code or services that an admitted one does not.

    Args:
      config: configuration to be used.
      admitted: configuration that the user consented to.
      place: origin of `config`, for the message.
    """
    known = code_of(admitted) + services_of(admitted)
    for item in code_of(config) + services_of(config):
        if item not in known:
            raise ConfigError(f"{place} names {item.key}={item.name}, which the configuration it belongs to does not.")


def remember(text: str, config: Config) -> str | None:
    """Record that this user's own command wrote a `config.yaml`, so that opening the run needs no further consent.

    Returns:
      Reason why that could not be recorded, if so; no run fails for it.
    """
    troubles = [_record(text.encode(), item) for item in code_of(config) + services_of(config)]
    return next((trouble for trouble in troubles if trouble), None)


def state_folder() -> Path:
    """Folder of the commands' own records: below `XDG_STATE_HOME`, by default `~/.local/state`."""
    root = os.environ.get("XDG_STATE_HOME", "")
    return (Path(root) if os.path.isabs(root) else Path.home() / ".local" / "state") / "stellaris_jax"


def _allows(trust: Trust, item: Named) -> bool:
    if os.environ.get(VARIABLE) == "1":
        return True
    return trust if isinstance(trust, bool) else item.name in {*trust, *map(plugin_path, trust)}


def _refusal(path: Path, pending: Iterable[Named]) -> str:
    pending = list(pending)
    parts = [
        f"{does} {' and '.join(f'{item.key}={_printed(item.name)}' for item in pending if item.does == does)}"
        for does in dict.fromkeys(item.does for item in pending)
    ]
    names = " ".join(f"--plugin={shlex.quote(_printed(item.name))}" for item in pending)
    return (
        f"{path} {' and '.join(parts)}, which you have not allowed, or which changed since; read it first, then allow "
        f"it by {names} or --trust (in Python trust=True), or by {VARIABLE}=1."
    )


def _printed(name: str) -> str:
    """Name for a message, on one line of limited length."""
    return name if name.isprintable() and len(name) < LONGEST else shown(name)


def _text(path: Path) -> bytes:
    try:
        return read_bytes(path, CONFIGURATION)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read as a configuration: {error.strerror}.") from None


def _is_recorded(text: bytes, item: Named) -> bool:
    if item.key.endswith(JOB):
        return False  # a record would not cover the sources that its lines lead to
    return _holds(_line(text, item))


def _holds(line: bytes) -> bool:
    """Whether the record contains a line."""
    try:
        return line in read_bytes(state_folder() / "trusted", 2**30).splitlines(keepends=True)
    except (OSError, RuntimeError):
        return False


def _record(text: bytes, item: Named) -> str | None:
    """Add a line to the record unless it is there. Returns the reason if that fails."""
    try:
        line = _line(text, item)  # computed once, since it reads all sources
        if _holds(line):
            return None
        folder = state_folder()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        with appending(folder / "trusted") as file:
            # The leading line end terminates a line that a full disk cut short.
            file.write(b"\n" + line)
    except (OSError, RuntimeError) as error:  # RuntimeError: no home directory
        return getattr(error, "strerror", None) or str(error)
    return None


def _line(text: bytes, item: Named) -> bytes:
    """Line of the record: a digest of a configuration's bytes, one item that it names, and that item's sources.

    Each item has a line of its own, so that consent to a plug-in is no consent to a service.
    """
    digest = sha256()
    for part in (text, item.key.encode(), os.fsencode(item.name)):
        digest.update(sha256(part).digest())
    for file in _sources(item):
        digest.update(sha256(os.fsencode(file)).digest() + _contents(file))
    return digest.hexdigest().encode() + b"\n"


def _sources(item: Named) -> Iterator[Path]:
    """Source files of a plug-in or module; all sources of a package, which may import any. Imports nothing.

    The source of a text of an environment is the file that it leads to, or the module.
    """
    if item.key == "plugins" and item.name.endswith(".py"):
        yield Path(item.name)
        return
    name: Path | str = item.name
    if item.key.startswith(env_texts.PREFIX):
        name = env_texts.source_of(item.name)
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
    """Digest of a file's contents, or zeros if it cannot be read."""
    try:
        return bytes.fromhex(digest_of(file))
    except OSError:
        return bytes(sha256().digest_size)
