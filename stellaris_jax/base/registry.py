"""Registry of everything that a configuration names: the package's own classes, a user's, and other packages'.

    import stellaris_jax as sj

    @sj.register.rule("quorum")
    class Quorum(sj.Rule):
        share: float = sj.knob(0.5, "share of the learners to wait for", within="(0, 1]")

        def ready(self, staleness, view):
            return len({gradient.learner for gradient in view.queue}) >= self.share * view.learners

The package's own classes are in the home modules of a kind, which are imported at the first lookup. A user's are in
plug-ins: modules or files that the key `plugins` names, and installed packages that name one in the entry-point group
`stellaris_jax.plugins`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from hashlib import sha256
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple, TypeVar

ENTRY_POINTS = "stellaris_jax.plugins"

T = TypeVar("T")


class RegistrationError(ValueError):
    """Name that is taken, or plug-in that cannot be used; the message is one sentence."""


class Place(NamedTuple):
    """Where an object was registered.

    Attributes:
      module: name of the module.
      file: its source's path; empty where there is none.
    """

    module: str
    file: str


class Kind:
    """Registered objects of one kind, by name.

    >>> shape = Kind("shape")
    >>> @shape("square")
    ... class Square: ...
    >>> shape["square"] is Square, list(shape)
    (True, ['square'])

    Args:
      name: the kind's name, in the singular.
      homes: modules that register the package's own objects.
      form: required form of names, such as `suite/name`; empty allows any.
    """

    def __init__(self, name: str, homes: Iterable[str] = (), form: str = ""):
        self.name, self.form = name, form
        self._homes = list(homes)
        self._entries: dict[str, Any] = {}
        self._places: dict[str, Place] = {}

    def __call__(self, name: str) -> Callable[[T], T]:
        """Decorator that registers an object under a name.

        A module may replace what it registered under the name before, as with `def`, so that a notebook's cell can run
        again. So may its file, imported under another name: a script's import and a run's plug-in are the same code.
        Raises RegistrationError for a name that another module has taken.
        """
        caller = sys._getframe(1).f_globals
        module, file = caller.get("__name__", ""), caller.get("__file__") or ""
        place = Place(module, file and os.path.realpath(file))

        def enter(entry: T) -> T:
            if self.form and name.count("/") != self.form.count("/"):
                raise RegistrationError(f"the {self.name} {name} must be called {self.form}")
            taken = self._places.get(name, place)
            if taken.module != place.module and (not place.file or taken.file != place.file):
                raise RegistrationError(f"the {self.name} {name} is there already, from {taken.module}")
            self._entries[name], self._places[name] = entry, place
            return entry

        return enter

    def replace(self, name: str, entry: Any) -> None:
        """Register an object, replacing any other of that name."""
        self._entries[name], self._places[name] = entry, Place(getattr(entry, "__module__", ""), "")

    def __getitem__(self, name: str) -> Any:
        """Object registered under a name. Raises KeyError."""
        self._load()
        return self._entries[name]

    def get(self, name: str) -> Any:
        """Object registered under a name, or None."""
        self._load()
        return self._entries.get(name)

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        """All names, in the order of registration."""
        self._load()
        return iter(list(self._entries))

    def items(self) -> list[tuple[str, Any]]:
        """Names and objects, in the order of registration."""
        return [(name, self._entries[name]) for name in self]

    def is_extended(self) -> bool:
        """Whether modules outside this package have registered objects; imports nothing."""
        return any(not place.module.startswith("stellaris_jax.") for place in self._places.values())

    def _load(self) -> None:
        while self._homes:
            import_module(self._homes[0])
            self._homes = self._homes[1:]


class Register:
    """Every kind of object that can be registered; `register.<kind>(name)` is a decorator."""

    def __init__(self) -> None:
        home = "stellaris_jax"
        self.rule = Kind("rule", [f"{home}.timeline.rules"])
        self.weight = Kind("weight", [f"{home}.timeline.weights"])
        self.admission = Kind("admission policy", [f"{home}.timeline.admission"])
        self.data_admission = Kind("data admission", [f"{home}.timeline.data_admission"])
        self.delay = Kind("delay model", [f"{home}.timeline.delays"])
        self.scaling = Kind("scaling rule", [f"{home}.timeline.scaling.rules", f"{home}.timeline.scaling.scheduler"])
        self.algorithm = Kind("algorithm", [f"{home}.agent.losses"])
        self.advantage = Kind("advantage", [f"{home}.agent.advantages"])
        self.optimizer = Kind("optimizer", [f"{home}.agent.optimizers"])
        self.mask = Kind("mask", [f"{home}.agent.losses.masks"])
        self.environment = Kind("environment", form="suite/name")
        self.suite = Kind("suite", [f"{home}.envs.registry"])
        self.wrapper = Kind("wrapper", [f"{home}.envs.wrappers"])
        self.correction = Kind("correction", [f"{home}.engine.corrections"])
        self.probe = Kind("probe", [f"{home}.engine.probes"])
        self.pool = Kind("pool", [f"{home}.live.broker", f"{home}.live.threads"])
        telemetry = f"{home}.telemetry"
        self.logger = Kind("logger", [f"{telemetry}.{name}" for name in ("tensorboard", "csvfiles", "trackers")])
        self.callback = Kind("callback")
        networks = f"{home}.agent.networks"
        policies = ("actor_critic", "transformer", "q_network", "squashed_gaussian")
        self.policy = Kind("policy", [f"{networks}.{name}" for name in policies])
        self.torso = Kind("torso", [f"{home}.agent.networks.torsos"])
        self.memory = Kind("memory", [f"{home}.agent.networks.recurrent"])

    def __getitem__(self, kind: str) -> Kind:
        """Kind by its attribute's name."""
        result: Kind = vars(self)[kind]
        return result

    def is_extended(self) -> bool:
        """Whether anything is registered, or was imported, from outside this package."""
        return bool(_plugins) or any(kind.is_extended() for kind in self.kinds().values())

    def kinds(self) -> dict[str, Kind]:
        """All kinds by the names of their attributes."""
        return dict(vars(self))


register = Register()


_plugins: dict[str, str] = {}
"""Imported plug-ins, as `plugins` names them, by their top-level package or file."""


def load_plugins(plugins: Iterable[str]) -> list[str]:
    """Import plug-ins, those of installed packages first; imported ones are skipped.

    Args:
      plugins: modules, such as `my_lab.plugins`, and files, such as `rules/quorum.py`.

    Returns:
      The same names, files as absolute paths.

    Raises:
      RegistrationError: a plug-in is missing, or its import fails.
    """
    for point in _points():
        try:
            _load(f"the package that names {point.value} in the entry-point group {ENTRY_POINTS}", point.load)
        except RegistrationError:
            _installed.cache_clear()  # the user may fix it in place
            raise
        _plugins[_package(point.module)] = point.value
    return [_load_plugin(name) for name in plugins]


def search_folder(modules: Iterable[str]) -> None:
    """Append the current folder to `sys.path` for modules that only it holds and that the command line names.

    The folder comes last, so that a `numpy.py` in it never replaces NumPy.

    Args:
      modules: names of modules, such as `my_package.plugins`.
    """
    folder = os.getcwd()
    if folder not in sys.path and not all(_is_importable(_package(name)) for name in modules):
        sys.path.append(folder)


def extend_path(path: Iterable[str]) -> None:
    """Append missing folders to `sys.path`, so that a process finds the modules that its driver finds."""
    sys.path += [folder for folder in path if folder and folder not in sys.path]


def _is_importable(package: str) -> bool:
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):  # a module without a spec, such as __main__
        return package in sys.modules


def searched(error: BaseException, module: str) -> str:
    """End of a sentence: places where a module was looked for; empty if the module itself failed.

    Args:
      error: the import's error.
      module: the module's name.
    """
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
        return ""
    tried = "tried: installed packages and PYTHONPATH"
    if os.getcwd() in map(os.path.abspath, sys.path):
        return f"; {tried}, then the current folder {os.getcwd()}"
    return f"; {tried}, not the current folder, which is searched only if the command line names {module}"


def _points() -> tuple[EntryPoint, ...]:
    places = [os.path.abspath(path) for path in sys.path]  # "" is the current folder
    return _installed(tuple((path, os.path.getmtime(path)) for path in places if os.path.exists(path)))


@lru_cache(maxsize=1)
def _installed(_places: tuple[tuple[str, float], ...]) -> tuple[EntryPoint, ...]:
    """Entry points of installed packages, read again when a package comes or goes, which changes its folder."""
    return tuple(entry_points(group=ENTRY_POINTS))


def is_imported(plugin: str) -> bool:
    """Whether a plug-in has been imported in this process, so that loading it runs nothing."""
    return (_module_of(Path(plugin).resolve()) if plugin.endswith(".py") else plugin) in sys.modules


def is_installed(plugin: str) -> bool:
    """Whether a plug-in is the module that an installed package names in the entry-point group."""
    return any(plugin == point.module for point in _points())


def plugin_path(plugin: str) -> str:
    """Name under which a run stores a plug-in: a file's absolute path, or the module's own name."""
    return str(Path(plugin).resolve()) if plugin.endswith(".py") else plugin


def _load_plugin(name: str) -> str:
    if not name.endswith(".py"):
        _load(f"plugins={name}", lambda: _import_named(name), name)
        _plugins[_package(name)] = name
        return name
    path = Path(name).resolve()
    module = _module_of(path)
    if module not in sys.modules:
        _load(f"plugins={name}", lambda: _import_file(module, path))
        _plugins[module] = str(path)
    return str(path)


def _import_named(name: str) -> None:
    """Import a module. Raises RegistrationError for the name of a file."""
    if os.sep in name or (os.path.isfile(name) and not _is_importable(_package(name))):
        raise RegistrationError("a file's name must end in .py, and a module's has dots between its parts")
    import_module(name)


def _module_of(path: Path) -> str:
    """Name of the module that a plug-in's file is imported as."""
    return f"stellaris_jax_plugin_{path.stem}_{sha256(str(path).encode()).hexdigest()[:8]}"


def _import_file(name: str, path: Path) -> None:
    if not path.is_file():
        raise FileNotFoundError("there is no such file")
    spec = spec_from_file_location(name, path)
    assert spec is not None
    # Compiled from the source, because a file in __pycache__ need not match it.
    code = compile(path.read_bytes(), str(path), "exec")
    sys.modules[name] = module = module_from_spec(spec)
    try:
        exec(code, vars(module))
    except BaseException:
        del sys.modules[name]
        raise


def _load(what: str, load: Callable[[], Any], module: str = "") -> None:
    try:
        load()
    except (Exception, SystemExit) as error:  # third-party code may raise anything
        reason = str(error) if isinstance(error, RegistrationError | FileNotFoundError) else ""
        reason = reason or f"{type(error).__name__}: {error}{searched(error, module)}"
        raise RegistrationError(f"{what} cannot be used: {' '.join(reason.split())}") from error


def code_location(function: Any) -> str:
    """File and line of a function, as `rules.py, line 12`; the name of its type if it has no code."""
    code = getattr(getattr(function, "__wrapped__", function), "__code__", None) or getattr(function, "__code__", None)
    if code is None:
        return type(function).__name__
    return f"{code.co_filename}, line {code.co_firstlineno}"


def author(error: BaseException) -> str | None:
    """Plug-in whose code raised an error, as `the rule quorum (plugins=[rules.py])`; None if no plug-in did."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__) if _package(_module(frame)) in _plugins]
    if not frames:
        return None
    # From the innermost frame outwards, because a registered object may call other functions of its module.
    named = (_registered(frame) for frame in reversed(frames))
    who = next((name for name in named if name), frames[-1].f_code.co_qualname)
    return f"{who} (plugins=[{_plugins[_package(_module(frames[-1]))]}])"


def _registered(frame: FrameType) -> str | None:
    """Registered object that contains the code of a frame: a function, a class, or a tuple of them, as `Algorithm`."""
    place = (_module(frame), frame.f_code.co_qualname)
    for kind in register.kinds().values():
        for name, entry in kind.items():
            for part in entry if isinstance(entry, tuple) else (entry,):
                module, code = getattr(part, "__module__", ""), getattr(part, "__qualname__", None)
                if module == place[0] and code and f"{place[1]}.".startswith(f"{code}."):
                    return f"the {kind.name} {name}"
    return None


def _module(frame: FrameType) -> str:
    name: str = frame.f_globals.get("__name__", "")
    return name


def _package(module: str) -> str:
    return module.partition(".")[0]
