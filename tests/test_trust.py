"""Opening what somebody else made runs nothing of theirs, unless the user consented; see `config.trust`."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import call, said

from stellaris_jax import ConfigError, load_config, load_policy, train
from stellaris_jax.config import trust
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.envs import make

SMALL = ["env=gymnax/cartpole", "env.num_envs=4", "algorithm.rollout_length=8", "algorithm.epochs=1",
         "algorithm.minibatches=4", "network.hidden=[4]", "system.learners=4", "total_steps=64",
         "evaluation.episodes=2", "evaluation.points=1", "run.progress=false", "run.loggers=[]"]  # fmt: skip
MARK = "Path(__file__).with_name('executed').touch()"
CODE = f"from pathlib import Path\n{MARK}\n"


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of our own, without any code of its own."""
    place = tmp_path_factory.mktemp("finished") / "run"
    train(load_config([*SMALL, f"run.dir={place}"]))
    return place


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A user who has allowed nothing, in a folder of their own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)


class Stranger:
    """A run somebody else sent, and the code it would have executed."""

    def __init__(self, folder: Path, run: Path):
        folder.mkdir()
        self.run, self.plugin, self.mark = folder / "run", folder / "evil.py", folder / "executed"
        shutil.copytree(run, self.run)
        self.plugin.write_text(CODE)
        self.module = f"evil_{abs(hash(str(folder)))}"
        (folder / f"{self.module}.py").write_text(CODE)

    @property
    def executed(self) -> bool:
        return self.mark.exists()

    def edit(self, before: str, after: str) -> None:
        path = self.run / "config.yaml"
        text = path.read_text()
        assert before in text
        path.write_text(text.replace(before, after, 1))


@pytest.fixture
def stranger(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stranger:
    made = Stranger(tmp_path / "sent", finished)
    monkeypatch.syspath_prepend(str(made.plugin.parent))
    return made


def names_plugin(sent: Stranger) -> None:
    sent.edit("plugins: []", f"plugins: [{sent.plugin}]")


def names_module(sent: Stranger) -> None:
    sent.edit("plugins: []", f"plugins: [{sent.module}]")


def names_environment(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", f"gymnasium/{sent.module}:Any-v0")


def names_environment_loosely(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", f"GYM-nasium/{sent.module}:Any-v0")


def names_wrapper(sent: Stranger) -> None:
    sent.edit("gymnax/CartPole-v1", "gymnasium/CartPole-v1")
    sent.edit("  kwargs: {}", f"  kwargs: {{wrappers: [gymnasium.wrappers.FlattenObservation, {sent.module}.Any]}}")


NAMING = [names_wrapper, names_plugin, names_module, names_environment, names_environment_loosely]
OPENING: dict[str, Callable[[Stranger], object]] = {
    "evaluate": lambda sent: call("evaluate.py", sent.run),
    "video": lambda sent: call("evaluate.py", sent.run, "--video", "film.gif"),
    "resume": lambda sent: call("train.py", f"resume={sent.run}", "total_steps=128"),
    "help": lambda sent: call("train.py", "--help", f"resume={sent.run}"),
    "export": lambda sent: call("export.py", sent.run, "--to", "flax"),
    "plot --trace": lambda sent: call("plot.py", "--trace", "out.json", sent.run),
}


@pytest.mark.parametrize("command", OPENING)
@pytest.mark.parametrize("naming", NAMING)
def test_opening_a_run_executes_nothing_of_it(
    naming: Callable[[Stranger], None], command: str, stranger: Stranger
) -> None:
    naming(stranger)
    ended = OPENING[command](stranger)
    assert not stranger.executed
    assert ended.returncode == 2 and len(said(ended.stderr)) == 1, ended.stderr
    name = stranger.plugin if naming is names_plugin else stranger.module
    assert f"={name}, which you have not allowed" in ended.stderr
    assert f"--plugin={name} or --trust" in ended.stderr and trust.VARIABLE in ended.stderr


@pytest.mark.parametrize("naming", NAMING)
def test_load_policy_executes_nothing(naming: Callable[[Stranger], None], stranger: Stranger) -> None:
    naming(stranger)
    with pytest.raises(ConfigError, match="which you have not allowed"):
        load_policy(stranger.run)
    assert not stranger.executed


READING: dict[str, Callable[[Stranger], object]] = {
    "report": lambda sent: call("report.py", sent.run),
    "report of a parent": lambda sent: call("report.py", sent.run.parent),
    "plot": lambda sent: call("plot.py", sent.run),
    "runs": lambda sent: call("runs.py", sent.run.parent),
}
INJECTED = ["++plugins: [{plugin}]", "+plugins: [{module}]", "'plugins=[{plugin}]': 1", "+resume: {run}",
            "++hydra.searchpath: ['pkg://{module}']", "hydra: {{searchpath: ['pkg://{module}']}}", "'~env': null",
            "env@_here_: x"]  # fmt: skip


@pytest.mark.parametrize("command", READING)
def test_reading_a_run_executes_nothing(command: str, stranger: Stranger) -> None:
    names_plugin(stranger)
    assert READING[command](stranger).returncode == 0  # the command works all the same
    assert not stranger.executed


@pytest.mark.parametrize("line", INJECTED)
def test_keys_of_a_stored_run_are_no_overrides(line: str, stranger: Stranger) -> None:
    """`report` gives a command that repeats the run; nothing of the run is composed for it."""
    text = (stranger.run / "config.yaml").read_text()
    filled = line.format(plugin=stranger.plugin, module=stranger.module, run=stranger.run)
    (stranger.run / "config.yaml").write_text(f"{filled}\n{text}")
    for place in (stranger.run, stranger.run.parent):
        ended = call("report.py", place)
        assert ended.returncode in (0, 2) and "Traceback" not in ended.stderr, ended.stderr
    assert not stranger.executed
    with pytest.raises(ConfigError, match="is not a config key"):
        from_yaml(stranger.run / "config.yaml")


def test_a_replay_executes_nothing_of_the_run_it_repeats(stranger: Stranger, tmp_path: Path) -> None:
    names_plugin(stranger)
    stranger.edit("executor: simulated", "executor: live")
    for trace in (stranger.run, stranger.run / "trace.jsonl.gz"):
        ended = call("train.py", "executor=replay", f"trace={trace}", "run.dir=again")
        assert ended.returncode == 2 and "which you have not allowed" in ended.stderr
    assert not stranger.executed and not (tmp_path / "again").exists()


def test_a_replay_that_names_another_run(stranger: Stranger, finished: Path) -> None:
    """A stored `trace` leads to another directory, whose configuration is read as data."""
    other = Stranger(stranger.run.parent / "other", finished)
    names_plugin(other)
    stranger.edit("executor: simulated", "executor: replay")
    stranger.edit("trace: ''", f"trace: {other.run}")
    for use in OPENING.values():
        use(stranger)
    call("report.py", stranger.run)
    assert not stranger.executed and not other.executed


def test_a_sweep_that_goes_on_executes_nothing(stranger: Stranger) -> None:
    names_plugin(stranger)
    sweep = stranger.run.parent / "sweep"
    sweep.mkdir()
    shutil.move(stranger.run, sweep / "0")
    (sweep / "sweep.yaml").write_text("overrides: []\npoints: 1\n")
    assert call("report.py", sweep).returncode == 0
    ended = call("train.py", "-m", f"resume={sweep}")
    assert ended.returncode == 2 and "which you have not allowed" in ended.stderr and not stranger.executed


def test_a_search_that_goes_on_executes_nothing(stranger: Stranger, tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    search = tmp_path / "search"
    space = tmp_path / "space.yaml"
    space.write_text("algorithm.learning_rate: {low: 1e-4, high: 1e-2, log: true}\n")
    begun = call("tune.py", *SMALL, "num_seeds=1", "--space", space, "--trials", 1, "--dir", search)
    assert begun.returncode == 0, begun.stderr
    whole = (search / "config.yaml").read_text()
    # The search itself names code.
    (search / "config.yaml").write_text(whole.replace("plugins: []", f"plugins: [{stranger.plugin}]"))
    ended = call("tune.py", "--resume", search, "--trials", 2)
    assert ended.returncode == 2 and "which you have not allowed" in ended.stderr
    # The configuration of a trial that is under way does.
    (search / "config.yaml").write_text(whole)
    (search / "1").mkdir()
    (search / "1" / "config.yaml").write_text(whole.replace("plugins: []", f"plugins: [{stranger.plugin}]"))
    call("tune.py", "--resume", search, "--trials", 2)
    # A choice of the space does.
    (search / "space.yaml").write_text(f"env.name: [gymnax/CartPole-v1, 'gymnasium/{stranger.module}:Any-v0']\n")
    call("tune.py", "--resume", search, "--trials", 4)
    assert not stranger.executed


def test_a_log_of_delays_is_data(stranger: Stranger) -> None:
    names_plugin(stranger)
    ended = call("train.py", *SMALL, "delays=trace", f"delays.log={stranger.run}", "run.dir=mine")
    assert ended.returncode == 2 and not stranger.executed


def test_overrides_within_a_configuration_need_consent(stranger: Stranger) -> None:
    """`env=job/training` composes its argument `job`."""
    for line in (
        f"plugins=[{stranger.plugin}]", f"resume={stranger.run}", f" ++plugins=[{stranger.module}]",
        "hydra.searchpath=[pkg://evil]", "env={name: 'gymnasium/evil:X'}", "env=gymnasium/evil:X",
    ):  # fmt: skip
        config = Config().replace({"env.name": "job/training", "env.kwargs": {"job": [line]}})
        assert [one.name for one in trust.code_of(config)] == [line]
    plain = ["env=gymnax/cartpole", "scaling.target=0.9", "algorithm.learning_rate=1e-3"]
    assert not trust.code_of(Config().replace({"env.name": "job/training", "env.kwargs": {"job": plain}}))


def test_wrappers_that_gymnasium_exports_are_no_code() -> None:
    """All other paths are, also to modules that are there already; what is no list of wrappers is never used."""

    def code(*wrappers: object) -> list[str]:
        return [one.name for one in trust.code_of(Config().replace({"env.kwargs": {"wrappers": list(wrappers)}}))]

    assert code("gymnasium.wrappers.ClipAction", {"name": "gymnasium.wrappers.RepeatAction", "num_repeats": 2}) == []
    assert code({"name": "evil.Wrapper", "x": 1}, "evil.Other", "os.path.Any") == ["evil", "os.path"]
    assert code("gymnasium.wrappers.RecordVideo") == ["gymnasium.wrappers"]  # which writes files
    assert code("gymnasium.wrappers.rendering.RecordVideo") == ["gymnasium.wrappers.rendering"]
    assert trust.Named("env.kwargs.wrappers", "os.path").is_pending
    assert code("evil.Wrapper", "evil") == []
    pytest.importorskip("gymnasium")
    with pytest.raises(ConfigError, match="must be a list of dotted paths"):
        make("gymnasium/CartPole-v1", {"wrappers": ["evil_of_nobody.Wrapper", "evil"]})


@pytest.mark.parametrize("key", ["run.loggers", "live.address"])
def test_services_of_a_stored_run_are_not_connected_to(key: str, stranger: Stranger) -> None:
    if key == "run.loggers":
        stranger.edit("  loggers: []", "  loggers: [wandb]")
        typed = "run.loggers=[wandb]"
    else:
        stranger.edit("executor: simulated", "executor: live")
        stranger.edit("  address: ''", "  address: 'ray://203.0.113.1:10001'")
        typed = "live.address=ray://203.0.113.2:10001"
    ended = call("train.py", f"resume={stranger.run}")
    assert ended.returncode == 2 and f"connects to {key}=" in ended.stderr
    config = from_yaml(stranger.run / "config.yaml")
    path = stranger.run / "config.yaml"
    assert trust.admit(config, path, training=True, typed={typed.partition("=")[0]}) == config
    if key == "run.loggers":
        assert load_policy(stranger.run)([0.0] * 4) in (0, 1)  # which connects to nothing


@pytest.mark.parametrize("way", ["--trust", "--plugin", "variable", "typed", "python", "python name"])
def test_each_way_to_consent(way: str, stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    names_plugin(stranger)
    if way == "variable":
        monkeypatch.setenv(trust.VARIABLE, "1")
    options = {"--trust": ["--trust"], "--plugin": ["--plugin", "sent/evil.py"], "typed": ["plugins=[sent/evil.py]"]}
    if way.startswith("python"):
        load_policy(stranger.run, trust=True if way == "python" else ["sent/evil.py"])
    elif way == "typed":
        assert call("train.py", f"resume={stranger.run}", *options[way]).returncode == 0
    else:
        assert call("evaluate.py", stranger.run, "--episodes", 1, *options.get(way, [])).returncode == 0
    assert stranger.executed
    # What was allowed once is remembered, for this configuration and these sources.
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    forget(stranger)
    assert call("evaluate.py", stranger.run, "--episodes", 1).returncode == 0
    assert stranger.executed
    forget(stranger)
    stranger.plugin.write_text(CODE + "changed = True\n")
    assert call("evaluate.py", stranger.run, "--episodes", 1).returncode == 2
    assert not stranger.executed


def forget(sent: Stranger) -> None:
    """As a process that has imported nothing of it."""
    for name in [name for name in sys.modules if name.startswith("stellaris_jax_plugin_evil")]:
        del sys.modules[name]
    sent.mark.unlink()
    importlib.invalidate_caches()


def test_consent_to_another_plugin_is_none(stranger: Stranger) -> None:
    names_plugin(stranger)
    (stranger.plugin.parent / "harmless.py").write_text("")
    ended = call("evaluate.py", stranger.run, "--plugin", "sent/harmless.py")
    assert ended.returncode == 2
    ended = call("train.py", f"resume={stranger.run}", "plugins=[sent/harmless.py]")
    assert ended.returncode == 2 and "plugins cannot change when a run is resumed" in ended.stderr
    assert not stranger.executed


def test_own_runs_never_ask(tmp_path: Path) -> None:
    """Also after a kill, elsewhere, and with other values of what may change; code that lies beside counts."""
    package = tmp_path / "my_lab_of_trust"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "helper.py").write_text("x = 1\n")
    (package / "rules.py").write_text("from my_lab_of_trust import helper\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(tmp_path))
        config = load_config([*SMALL, "plugins=[my_lab_of_trust.rules]", "run.dir=own"])
        train(config)

        def opened() -> None:
            for name in [name for name in sys.modules if name.startswith("my_lab_of_trust")]:
                del sys.modules[name]
            load_policy(tmp_path / "moved")

        shutil.move(tmp_path / "own", tmp_path / "moved")
        opened()
        (package / "helper.py").write_text("x = 2\n")
        with pytest.raises(ConfigError, match="or which changed since"):
            opened()


def test_a_run_without_code_needs_no_home(finished: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(blocked))
    (tmp_path / "plugin.py").write_text("")
    train(load_config([*SMALL, "plugins=[plugin.py]", "run.dir=own"]))
    load_policy(finished)
    monkeypatch.delenv("XDG_STATE_HOME")
    monkeypatch.setattr(Path, "home", lambda: (_ for _ in ()).throw(RuntimeError("no home")))
    load_policy(finished)
    assert trust.remember("text", Config(plugins=("other.py",))) == "no home"


def test_the_record_follows_no_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "state" / "stellaris_jax").mkdir(parents=True)
    (tmp_path / "state" / "stellaris_jax" / "trusted").symlink_to(victim)
    assert trust.remember("text", Config(plugins=("other.py",)))
    assert victim.read_text() == "mine"


def test_a_planted_cache_of_a_plugin_is_not_executed(tmp_path: Path) -> None:
    """Python would take `__pycache__` for the source, if size and time of the source fit."""
    import py_compile

    source = tmp_path / "planted.py"
    source.write_text("raise SystemExit('evil')\n")
    py_compile.compile(str(source))
    stamp = source.stat()
    source.write_text("#".ljust(stamp.st_size - 1) + "\n")
    os.utime(source, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    load_config([f"plugins=[{source}]"])


def test_to_yaml_and_back_keeps_plugins() -> None:
    config = Config(plugins=("/nowhere/at_all.py",))
    path = Path("config.yaml")
    path.write_text(to_yaml(config))
    assert from_yaml(path).plugins == config.plugins  # as data; nothing is looked for


def test_unknown_failures_are_no_consent(stranger: Stranger) -> None:
    """A configuration that is no mapping of ours, or cut off, is refused before anything is asked."""
    names_plugin(stranger)
    text = (stranger.run / "config.yaml").read_text()
    (stranger.run / "config.yaml").write_text(text.replace("resume:", "resum:"))
    with pytest.raises(ConfigError):
        load_policy(stranger.run, trust=True)
    assert not stranger.executed


def test_consent_to_code_is_none_to_services(stranger: Stranger) -> None:
    """Who allowed a plug-in to evaluate a run has not allowed the tracker beside it."""
    names_plugin(stranger)
    stranger.edit("  loggers: []", "  loggers: [wandb]")
    path = stranger.run / "config.yaml"
    load_policy(stranger.run, trust=[str(stranger.plugin)])
    forget(stranger)
    load_policy(stranger.run)
    with pytest.raises(ConfigError, match=r"connects to run\.loggers=wandb"):
        trust.admit(from_yaml(path), path, training=True)
    # What the command line replaced was not allowed either.
    trust.admit(from_yaml(path).replace({"run.loggers": ()}), path, training=True, typed={"run.loggers"})
    with pytest.raises(ConfigError, match=r"connects to run\.loggers=wandb"):
        trust.admit(from_yaml(path), path, training=True)


def package(folder: Path) -> Path:
    """A package with a module in it, and one behind a link."""
    place = folder / "lab_of_links"
    place.mkdir()
    (place / "__init__.py").write_text("")
    (place / "rules.py").write_text("x = 1\n")
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "deep.py").write_text("x = 1\n")
    (place / "linked").symlink_to(folder / "elsewhere")
    return place


@pytest.mark.parametrize("kind", ["behind a link", "without source", "large", "in a cache"])
def test_every_changed_source_asks_again(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = package(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    large = place / "large.py"
    with large.open("w") as file:
        file.truncate(20 * 2**20)
    one = trust.Named("plugins", "lab_of_links.rules")
    before = trust._line(b"text", one)
    stamp = large.stat()
    if kind == "behind a link":
        (tmp_path / "elsewhere" / "deep.py").write_text("x = 2\n")
    elif kind == "without source":
        (place / "bare.pyc").write_bytes(b"code")
    elif kind == "large":
        with large.open("r+b") as file:
            file.write(b"x = 2")
        os.utime(large, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
    else:
        (place / "__pycache__").mkdir()
        (place / "__pycache__" / "rules.cpython-312.pyc").write_bytes(b"code")
    assert (trust._line(b"text", one) == before) == (kind == "in a cache")


def test_caches_beside_modules_are_not_used(stranger: Stranger, monkeypatch: pytest.MonkeyPatch) -> None:
    """`__pycache__` may hold other code than its source, so that modules of stored runs are compiled anew."""
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delenv("PYTHONPYCACHEPREFIX", raising=False)
    names_module(stranger)
    load_policy(stranger.run, trust=True)
    assert sys.pycache_prefix == str(trust.state_folder() / "pycache") == os.environ["PYTHONPYCACHEPREFIX"]
    monkeypatch.delenv("PYTHONPYCACHEPREFIX")


def test_a_refusal_can_be_pasted(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(to_yaml(Config(plugins=("a b; touch PWNED #", "--trust"))))
    with pytest.raises(ConfigError, match="--plugin='a b; touch PWNED #' --plugin=--trust or --trust"):
        trust.admit(from_yaml(path), path)


def test_lines_of_the_record_are_unambiguous() -> None:
    lines = {trust._line(text, trust.Named(key, name)) for text, key, name in (
        (b"a", "plugins", "b"), (b"ap", "lugins", "b"), (b"a", "pluginsb", ""), (b"a", "plugins\0b", ""),
    )}  # fmt: skip
    assert len(lines) == 4


CURRENT = """
import sys
from pathlib import Path
Path("executed").touch()
"""


def test_processes_do_not_import_from_the_current_folder(tmp_path: Path) -> None:
    """As a run that is unpacked, with a module that processes look for lying beside it."""
    pytest.importorskip("gymnasium")
    (tmp_path / "multiprocessing").mkdir()
    (tmp_path / "multiprocessing" / "__init__.py").write_text(CURRENT)
    (tmp_path / "stellaris_jax").mkdir()
    (tmp_path / "stellaris_jax" / "__init__.py").write_text(CURRENT)
    from stellaris_jax.envs.registry import make

    pool = make("gymnasium/CartPole-v1", {"vectorization_mode": "async"}).open(1, 0)
    pool.close()
    assert not (tmp_path / "executed").exists()


def test_too_many_seeds_of_a_stored_run_are_refused(stranger: Stranger) -> None:
    stranger.edit("num_seeds: 1", "num_seeds: 1000000000")
    with pytest.raises(ConfigError, match="num_seeds must"):
        load_policy(stranger.run)


def test_own_modules_in_the_current_folder_are_found_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that names one searches the folder; opening the run later finds the same module there, or asks."""
    (tmp_path / "own_rules_of_trust.py").write_text("")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place not in ("", str(tmp_path))])
    assert call("train.py", *SMALL, "plugins=[own_rules_of_trust]", "run.dir=own").returncode == 0

    def opened() -> object:
        sys.modules.pop("own_rules_of_trust", None)
        monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
        return load_policy("own")

    opened()
    (tmp_path / "own_rules_of_trust.py").write_text("changed = True\n")
    with pytest.raises(ConfigError, match="or which changed since"):
        opened()
