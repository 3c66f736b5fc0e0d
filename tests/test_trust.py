"""Opening what somebody else made runs nothing of theirs, unless the user consented; see `config.trust`."""

# ruff: noqa: F811  (fixtures are arguments)

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from commands import call, said
from run_dirs import lived
from strangers import (  # noqa: F401
    CODE,
    MARK,
    NAMING,
    SMALL,
    Stranger,
    finished,
    forget,
    names_plugin,
    nobody,
    stranger,
)

from stellaris_jax import ConfigError, load_policy
from stellaris_jax.config import trust
from stellaris_jax.config.stored import from_yaml, to_yaml
from stellaris_jax.config.tree import Config
from stellaris_jax.envs import make
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.trace import Header

OPENING: dict[str, Callable[[Stranger], CompletedProcess[str]]] = {
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
    for place in (stranger.run, stranger.run / "trace.jsonl.gz"):
        ended = call("train.py", "executor=replay", f"trace={place}", "run.dir=again")
        assert ended.returncode == 2 and "which you have not allowed" in ended.stderr
    assert not stranger.executed and not (tmp_path / "again").exists()


def test_a_replay_that_names_another_run(stranger: Stranger, finished: Path) -> None:
    """A stored `trace` leads to another directory, whose configuration is read as data."""
    other = Stranger(stranger.run.parent / "other", finished)
    names_plugin(other)
    other.edit("executor: simulated", "executor: live")
    trace.write(other.run / trace.NAME, Header(0, 4), [lived()])
    stranger.edit("executor: simulated", "executor: replay")
    stranger.edit("trace: ''", f"trace: {other.run}")
    stranger.edit("total_steps: 64", "total_steps: 32")
    for use in OPENING.values():
        ended = use(stranger)
        assert "no trace" not in ended.stderr and "Traceback" not in ended.stderr, ended.stderr
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
    (search / "config.yaml").write_text(whole)
    refused = "which the configuration it belongs to does not"
    # A choice of the space does.
    other = Path(shutil.copytree(search, tmp_path / "other"))
    (other / "space.yaml").write_text(f"env.name: [gymnax/CartPole-v1, 'gymnasium/{stranger.module}:Any-v0']\n")
    ended = call("tune.py", "--resume", other, "--trials", 4)
    assert f"names env.name={stranger.module}, {refused}" in ended.stderr
    # The configuration of a trial that is under way does.
    from stellaris_jax.many.search_store import Search, study_of

    rate = study_of(search, Search(trials=1)).ask().suggest_float("algorithm.learning_rate", 1e-4, 1e-2, log=True)
    trial = {"algorithm.learning_rate": rate, "run.dir": str(search / "1"), "plugins": (str(stranger.plugin),)}
    (search / "1").mkdir()
    (search / "1" / "config.yaml").write_text(to_yaml(from_yaml(search / "0" / "config.yaml").replace(trial)))
    ended = call("tune.py", "--resume", search, "--trials", 2)
    assert f"names plugins={stranger.plugin}, {refused}" in ended.stderr
    assert not stranger.executed


def test_a_log_of_delays_is_data(stranger: Stranger) -> None:
    names_plugin(stranger)
    trace.write(stranger.run / trace.NAME, Header(0, 4), [lived()])
    ended = call("train.py", *SMALL, "delays=trace", f"delays.log={stranger.run}", "run.dir=mine")
    assert ended.returncode == 0 and not stranger.executed, ended.stderr


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


@pytest.mark.parametrize(("pool", "asked"), [("ray", True), ("of_a_plugin", True), ("threads", False)])
def test_consent_to_a_cluster_is_for_pools_that_may_join_it(pool: str, asked: bool) -> None:
    config = Config().replace({"executor": "live", "live.address": "h:1", "live.pool": pool})
    assert [item.key for item in trust.services_of(config)] == ["live.address"] * asked


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


def test_consent_to_another_plugin_is_none(stranger: Stranger) -> None:
    names_plugin(stranger)
    (stranger.plugin.parent / "harmless.py").write_text("")
    ended = call("evaluate.py", stranger.run, "--plugin", "sent/harmless.py")
    assert ended.returncode == 2
    ended = call("train.py", f"resume={stranger.run}", "plugins=[sent/harmless.py]")
    assert ended.returncode == 2 and "plugins cannot change when a run is resumed" in ended.stderr
    assert not stranger.executed
