"""Plug-ins: every example, from a directory outside the checkout, against the installed wheel."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import zipfile
from importlib import import_module
from pathlib import Path

import pytest
from commands import REPOSITORY
from drawn import assert_picture

from stellaris_jax import ConfigError, load_config, register
from stellaris_jax.base.registry import Kind, RegistrationError, load_plugins
from stellaris_jax.config.optioned import options_of

EXAMPLES = REPOSITORY / "examples" / "plugins"

SMALL = ["env.num_envs=8", "algorithm.rollout_length=8", "algorithm.epochs=1", "algorithm.minibatches=4",
         "network.hidden=[4]",
         "system=stellaris", "system.learners=4", "total_steps=256", "evaluation.episodes=2", "evaluation.points=2",
         "engine.chunk_rounds=1", "run.progress=false", "algorithm.anneal=false"]  # fmt: skip
CASES = {
    "target": ["algorithm.name=ema_ppo", "algorithm.options.target_rate=0.05"],
    "rule": ["system.rule=quorum", "system.rule_options.share=0.25"],
    "admission": ["system.admission=back_pressure", "system.admission_options.waiting=1"],
    "data_admission": [
        "system.actors=independent",
        "system.data_admission=within_versions",
        "system.data_admission_options.versions=20",
    ],
    "delay": ["delays.learner.kind=shared", "delays.learner.options.busy=0.3"],
    "jax_environments": ["env=mine/corridor", "env.kwargs.length=3"],
    "jax_environments-2": ["env=mine/point"],
    "host_environment": ["env=mine/pole"],
    "wrapper": ["env=gymnax/acrobot", "env.wrappers=[action_repeat,clip_observation]"],
    "torso": ["network.torso=fourier"],
    "memory": ["network.memory=means", "network.memory_size=8"],
    "policy": ["env=gymnax/pendulum", "network.policy=mixture", "network.options.components=2"],
    "algorithm": ["algorithm.name=rwr", "algorithm.options.temperature=0.5", "system.truncation=none"],
    "optimizer": ["algorithm.optimizer=lion", "algorithm.optimizer_options.decay=0.1"],
    "optimizer-2": ["algorithm.optimizer=muon", "algorithm.optimizer_options.steps=3"],
    "advantage": ["algorithm.advantage=ranks", "algorithm.advantage_options.width=2"],
    "loss": ["algorithm.name=a2c", "system.truncation=none"],
    "objective": ["algorithm.name=spo", "algorithm.options.radius=0.3"],
    "tokens": [
        "env.name=mine/reverse",
        "algorithm=grpo",
        "network.policy=transformer",
        "network.options.width=8",
        "algorithm.rollout_length=4",
        "warm_start.updates=2",
    ],
    "mask": ["algorithm.masks=[unlikely]", "algorithm.mask_options.unlikely.least=0.05"],
    "weight": ["system.weights=cliff", "system.weight_options.edge=2"],
    "correction": ["system.corrections=[fade]", "system.correction_options.fade.distance=0.5"],
    "scaling": ["scaling.rule=halving", "scaling.options.every=1"],
    "logger": ["run.loggers=[tensorboard,progress]", "run.logger_options.progress.digits=2"],
    "pool": ["executor=live", "live.pool=inline", "live.actors=2", "env=gymnax/cartpole"],
    "callback": ["run.callbacks=[too_stale]", "delays=pareto", "system.rule=async", "system.learners=4"],
}
"""A job for every example. Names of files end at the hyphen."""

DRIVER = """
import json, sys
import jax
from stellaris_jax.cli.main import main
jax.config.update("jax_platforms", "cpu")
for command in json.loads(sys.argv[1]):
    main(command)
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with nothing but the wheel in it, as pip installs it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(REPOSITORY)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    zipfile.ZipFile(wheel).extractall(folder / "site")
    return folder / "site"


def installed(site: Path, where: Path, *commands: list[str]) -> str:
    """Output of commands, one after the other, in a process with the installed package only."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    call = [sys.executable, "-c", DRIVER, json.dumps(commands)]
    done = subprocess.run(call, cwd=where, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.slow
def test_every_example_runs_from_outside(site: Path, tmp_path: Path) -> None:
    pytest.importorskip("gymnasium")
    jobs = []
    for name, overrides in CASES.items():
        plugin = EXAMPLES / f"{name.partition('-')[0]}.py"
        jobs.append(["train", *SMALL, f"plugins=[{plugin}]", *overrides, f"run.dir={name}"])
    out = installed(site, tmp_path, *jobs)
    assert "stellaris-jax evaluate corridor" in out or "stellaris-jax evaluate jax_environments" in out
    assert {path.name for path in EXAMPLES.glob("*.py")} == {f"{name.partition('-')[0]}.py" for name in CASES}
    summaries = {name: json.loads((tmp_path / name / "summary.json").read_text()) for name in CASES}
    assert {name for name, summary in summaries.items() if summary["failure"] is not None} == set()
    assert {name for name, summary in summaries.items() if summary["ended_early"]} == {"callback"}
    assert (tmp_path / "logger" / "progress.txt").read_text().count("\n") == 2  # of two evaluations
    rounds = [json.loads(line) for line in (tmp_path / "scaling" / "metrics.jsonl").read_text().splitlines()]
    assert [row["actors"] for row in rounds if row["kind"] == "round"] == [8, 4, 2, 1]
    # Commands that resume, evaluate or draw a run do not need its plug-ins named again.
    out = installed(
        site,
        tmp_path,
        ["train", "resume=rule", "total_steps=512"],
        ["evaluate", "jax_environments", "--episodes", "2"],
        ["plot", "rule", "torso", "--out", "two.png"],
        ["train", "-m", f"plugins=[{EXAMPLES / 'rule.py'}]", *SMALL, "num_seeds=1", "system.rule=quorum,async"],
        ["check-env", "gymnax/cartpole"],
    )
    assert "mine/corridor" in out
    assert_picture(tmp_path / "two.png", width=1200)
    assert json.loads((tmp_path / "rule" / "summary.json").read_text())["rounds"] == 8


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.stem)
def test_examples_are_short(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 60


def test_installed_packages_name_their_plugins(site: Path, tmp_path: Path) -> None:
    lab = tmp_path / "lab"
    (lab / "my_lab-1.0.dist-info").mkdir(parents=True)
    (lab / "my_lab-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: my_lab\nVersion: 1.0\n")
    points = "[stellaris_jax.plugins]\nmine = my_lab_rules\n"
    (lab / "my_lab-1.0.dist-info" / "entry_points.txt").write_text(points)
    (lab / "my_lab_rules.py").write_text((EXAMPLES / "rule.py").read_text())
    code = "import stellaris_jax as sj; print(sj.load_config(['system.rule=quorum']).system.rule_options['share'])"
    environment = {**os.environ, "PYTHONPATH": f"{site}{os.pathsep}{lab}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout == "0.5\n", done.stderr


def test_a_package_installed_meanwhile_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    load_config()
    (tmp_path / "later_lab.py").write_text("")  # registers nothing, which would stay for the tests after this one
    (tmp_path / "later_lab-1.0.dist-info").mkdir()
    (tmp_path / "later_lab-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: later_lab\n")
    points = "[stellaris_jax.plugins]\nlater = later_lab\n"
    (tmp_path / "later_lab-1.0.dist-info" / "entry_points.txt").write_text(points)
    load_config()
    assert "later_lab" in sys.modules


def test_a_package_in_the_working_directory_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook the empty path stands for it, wherever that is."""
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    load_config()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here_lab.py").write_text("1 / 0\n")
    (tmp_path / "here_lab.egg-info").mkdir()
    (tmp_path / "here_lab.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: here_lab\n")
    points = tmp_path / "here_lab.egg-info" / "entry_points.txt"
    points.write_text("[stellaris_jax.plugins]\nhere = here_lab\n")
    with pytest.raises(ConfigError, match="here_lab"):
        load_config()
    points.write_text("")
    load_config()


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (None, ["there is no such file"]),
        ("1 / 0", ["ZeroDivisionError"]),
        ("import no_such_module_anywhere", ["ModuleNotFoundError", "no_such_module_anywhere"]),
        ("def (", ["SyntaxError"]),
        (
            "import stellaris_jax as sj\n@sj.register.rule('stellaris')\nclass Mine(sj.Rule): ...",
            ["the rule stellaris is there already", "stellaris_jax.timeline.rules"],
        ),
        ("import stellaris_jax as sj\nsj.register.environment('corridor')(dict)", ["corridor", "suite/name"]),
    ],
)
def test_a_plugin_that_fails_is_one_sentence(text: str | None, parts: list[str], tmp_path: Path) -> None:
    path = tmp_path / "plugin.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError) as told:
        load_config([f"plugins=[{path}]"])
    message = str(told.value)
    assert message.startswith(f"plugins={path} cannot be used: ") and "\n" not in message
    assert all(part in message for part in parts), message


def test_a_module_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(ConfigError, match="plugins=my_lab_nowhere cannot be used: ModuleNotFoundError"):
        load_config(["plugins=[my_lab_nowhere]"])


@pytest.mark.parametrize(
    "name", ["plugin", "plugin.txt", "{folder}/plugin", "./plugin.txt", "nowhere/plugin", "folder"]
)
def test_a_file_that_is_no_module_is_one_sentence(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "plugin").write_text("")
    (tmp_path / "plugin.txt").write_text("")
    name = name.format(folder=tmp_path)
    sentence = f"plugins={name} cannot be used: a file's name must end in .py"
    if name == "folder":
        (tmp_path / "folder").mkdir()
        sentence = "plugins=folder cannot be used: ModuleNotFoundError"
    with pytest.raises(ConfigError, match=re.escape(sentence)):
        load_config([f"plugins=[{name}]"])


def test_plugins_are_stored_where_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run may be resumed from elsewhere."""
    (tmp_path / "nothing.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert load_config(["plugins=[nothing.py]"]).plugins == (str(tmp_path / "nothing.py"),)


def test_everything_registered_can_be_asked_for_its_options() -> None:
    for kind in register.kinds().values():
        for name, thing in kind.items():
            for option in options_of(thing).values():
                option.knob.check(option.default)
                assert option.knob.help, (kind.name, name, option.knob.key)


def registers(module: str, line: str, kind: Kind) -> None:
    """Run a line of a module that registers something, such as a cell of a notebook."""
    exec(line, {"kind": kind, "__name__": module})


@pytest.mark.parametrize(
    "line", ["kind('a')(dict(f=lambda: 1))", "kind('a')(type('New', (), {}))", "@kind('a')\ndef f(): ..."]
)
def test_a_cell_of_a_notebook_runs_once_more(line: str) -> None:
    kind = Kind("thing")
    registers("__main__", line, kind)
    before = kind["a"]
    registers("__main__", line, kind)
    assert kind["a"] is not before and list(kind) == ["a"]


def test_another_module_does_not_take_a_name() -> None:
    kind = Kind("thing")
    registers("first", "kind('a')(dict(f=1))", kind)
    for module in ("second", "__main__"):
        with pytest.raises(RegistrationError, match="the thing a is there already, from first"):
            registers(module, "kind('a')(dict(f=1))", kind)
    assert kind["a"] == {"f": 1} and "b" not in kind and kind.get("b") is None


@pytest.mark.parametrize("imported_first", [True, False])
def test_a_script_imports_the_file_of_its_run(
    imported_first: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`import lab; load_policy("run")`, where the run has `plugins=[lab.py]`: one file, two modules."""
    name = f"lab_{imported_first}"
    file = tmp_path / f"{name}.py"
    file.write_text(f"from stellaris_jax import register\n\n\n@register.callback({name!r})\nclass Lab:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    both = [lambda: import_module(name), lambda: load_plugins([str(file)])]
    for load in both if imported_first else reversed(both):
        load()
    assert register.callback[name].__name__ == "Lab"
