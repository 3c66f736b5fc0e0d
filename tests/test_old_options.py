"""Old keys of options still work: those that a user gives warn once, those of stored runs do not."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna
import pytest
import yaml
from settings import complaint
from sweeps import SMALL, records

from stellaris_jax import Config, load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config import old_options
from stellaris_jax.config.compose import compose_config, load_sweep
from stellaris_jax.config.options import PLACES
from stellaris_jax.config.schema import flatten, plain
from stellaris_jax.config.stored import from_yaml
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.many.space import Space
from stellaris_jax.report.runs import group_replicates, read_run
from stellaris_jax.telemetry.integrity import run_identity, settings_digest


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(old_options, "_warned", [])


def loaded(*overrides: str, directory: Path | None = None) -> tuple[Config, list[str]]:
    """A configuration, and what was warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = load_config(overrides, directory)
    return config, [str(warning.message) for warning in caught if warning.category is FutureWarning]


NEW_OF_OLD = {
    ("system=softsync", "system.options.c=2", "++system.options.root=2"): (
        "system=softsync", "system.rule_options.c=2", "system.weight_options.root=2",
    ),
    ("system=softsync", "system.options={c: 2, root: 2}"): (
        "system=softsync", "system.rule_options.c=2", "system.weight_options.root=2",
    ),
    ("system=artifact", "system.options.decay=0.5"): (
        "system=artifact", "system.rule_options.decay=0.5", "system.weight_options.decay=0.5",
    ),
    ("system=parallax", "system.options.trust_kl=0.5"): (
        "system=parallax", "system.correction_options.kl_gate.trust_kl=0.5",
    ),
    ("algorithm.masks=[dppo]", "algorithm.options.tv_bound=0.5", "algorithm.options.clip=0.1"): (
        "algorithm.masks=[dppo]", "algorithm.mask_options.dppo.tv_bound=0.5", "algorithm.options.clip=0.1",
    ),
}  # fmt: skip


@pytest.mark.parametrize("old", NEW_OF_OLD, ids=" ".join)
def test_old_keys_do_what_new_ones_do(old: tuple[str, ...]) -> None:
    config, warned = loaded(*old)
    assert config == load_config(NEW_OF_OLD[old])
    (sentence,) = warned
    assert "is called " in sentence and sentence.endswith("; the next release drops the old keys.")
    assert all(key.partition("=")[0] in sentence for key in NEW_OF_OLD[old][1:] if "options.clip" not in key)
    assert loaded(*old)[1] == [], "once a process"


def test_new_keys_warn_of_nothing() -> None:
    assert loaded("system=softsync", "system.rule_options.c=2", "algorithm.options.clip=0.1")[1] == []


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["system=central", "system.options.c=4"], "system.rule_options.c belongs to system.rule=softsync, not to"),
        (
            ["system.options.deccay=0.9"],
            "system.rule_options.deccay is not an option of system.rule=stellaris;",
        ),
        (["algorithm.options.tv_bound=0.1"], "algorithm.mask_options.dppo.tv_bound belongs to algorithm.masks=[dppo]"),
        (["system=ssp", "system.options.s=-1"], "system.rule_options.s must be at least 0"),
        (["system.options=3"], "system.options must be a mapping, not 3."),
        (["run.loggers=[csv]", "run.options.nope=1"], "run.options.nope is not an option of run.loggers=[csv]."),
        (["run.loggers=[]", "run.options.nope=1"], "run.options.nope is not an option of run.loggers=[]."),
        (["algorithm.masks=[nope]", "algorithm.options.foo=1"], "algorithm.masks must be some of icepop, dppo, "),
    ],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_what_is_refused_of_old_keys(overrides: list[str], told: str) -> None:
    assert told in complaint(*overrides)


def test_presets_of_a_user_may_have_old_keys(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("name: mine\nrule: softsync\noptions: {c: 3, root: 1}\n")
    config, warned = loaded("system=mine", directory=tmp_path)
    assert (config.system.rule_options, config.system.weight_options) == ({"c": 3}, {"root": 1})
    assert len(warned) == 1 and "system.rule_options.c" in warned[0]
    assert loaded("system=mine", "system.rule_options.c=2", directory=tmp_path)[0].system.rule_options == {"c": 2}


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_sweeps_over_old_keys() -> None:
    points = load_sweep(["system=softsync", "system.options.c=1,2"]).points
    assert [compose_config(point).system.rule_options["c"] for point in points] == [1, 2]


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_spaces_with_old_keys(tmp_path: Path) -> None:
    config = load_config([])
    (tmp_path / "space.yaml").write_text("system.options.decay: {low: 0.5, high: 1}\nsystem.options: {root: [2, 3]}\n")
    space = Space.read(tmp_path / "space.yaml", config)
    values = space.suggest(optuna.create_study().ask())
    changed = config.replace(old_options.renamed(values, config))
    assert changed.system.rule_options["decay"] == values["system.options.decay"]
    assert changed.system.weight_options["root"] == values["system.options.root"]
    assert space.of(changed) == values


def test_the_old_mapping_of_a_system_is_still_read() -> None:
    config = load_config(["system=parallax"])
    with pytest.warns(FutureWarning, match="rule_options"):
        assert config.system.options == {"coalesce": False, "trust_kl": 0.01}


def test_the_old_mapping_of_loggers_is_still_read() -> None:
    config = Config().replace({"run.logger_options": {"wandb": {"project": "mine"}, "mlflow": {"experiment": "one"}}})
    with pytest.warns(FutureWarning, match="logger_options"):
        assert config.run.options == {"project": "mine", "experiment": "one"}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        (
            "system.options.decay",
            "system.options.decay stands below the key of its owner now: system.rule_options, system.weight_options, "
            "system.admission_options, system.correction_options or system.data_admission_options.",
        ),
        ("run.options.project", "run.options.project stands below the key of its owner now: run.logger_options."),
        ("run.options", "run.options stands below the key of its owner now: run.logger_options."),
    ],
)
def test_replace_names_the_new_keys(key: str, told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        Config().replace({key: 0.5})
    assert str(refused.value) == told


# Stored runs ---------------------------------------------------------------------------------------------------------


def old_tree(config: Config) -> dict[str, Any]:
    """A configuration as runs stored it before."""
    tree: dict[str, Any] = plain(config)
    for section in ("system", "algorithm", "run"):
        options: dict[str, Any] = {}
        for place in (place for place in PLACES if place.section == section):
            given = tree[section].pop(place.options.partition(".")[2])
            for own in given.values() if place.listed else [given]:
                options |= own
        tree[section]["options"] = options
    return tree


def make_old(run_dir: Path) -> None:
    path = run_dir / "config.yaml"
    path.write_text(yaml.safe_dump(old_tree(from_yaml(path)), sort_keys=False))


METHOD = ("system=softsync", "system.learners=2", "system.rule_options.c=2", "system.corrections=[kl_gate]",
          "system.correction_options.kl_gate.trust_kl=0.1", "algorithm.masks=[dppo]")  # fmt: skip


def test_digests_of_runs_are_those_of_the_old_layout() -> None:
    config = load_config([*SMALL, *METHOD])
    old, new = flatten(old_tree(config)), flatten(plain(config))
    assert old != new
    assert (run_identity(old), settings_digest(old)) == (run_identity(new), settings_digest(new))
    assert flatten(old_options.migrated(old_tree(config))) == new
    plainest = load_config(["system=async", "system.weights=constant"])
    assert run_identity(flatten(old_tree(plainest))) == run_identity(flatten(plain(plainest)))
    other = new | {"system.correction_options.kl_gate.trust_kl": 0.2}
    assert run_identity(other) != run_identity(new)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run_dir: Path = tmp_path_factory.mktemp("trained") / "run"
    train(load_config([*SMALL, *METHOD, "engine.chunk_rounds=1", f"run.dir={run_dir}"]))
    return run_dir


def test_a_run_of_the_old_layout_is_read_opened_and_resumed(trained: Path, tmp_path: Path) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    make_old(run_dir)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run = read_run(run_dir)
        assert not run.damage and run.summary and run.config["system.rule_options.c"] == 2
        open_run(run_dir).close()
        for lost in [run_dir / "summary.json", *sorted((run_dir / "checkpoints").iterdir(), key=str)[-1:]]:
            shutil.rmtree(lost) if lost.is_dir() else lost.unlink()
        train(load_config([f"resume={run_dir}"]))
    assert records(run_dir) == records(trained)
    assert (
        not read_run(run_dir).damage and "options" not in yaml.safe_load((run_dir / "config.yaml").read_text())["run"]
    )


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_old_keys_of_a_resumed_run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from stellaris_jax import Logger, knob

    @register.logger("test_told")
    class Told(Logger):
        project: str = knob("none", "a project")

    try:
        config = load_config([f"resume={trained}", "run.loggers=[test_told]", "run.options.project=mine"])
        assert config.run.logger_options == {"test_told": {"project": "mine"}}
    finally:
        del register.logger._entries["test_told"]


@pytest.mark.parametrize("checkpoint", [True, False])
@pytest.mark.parametrize("override", ["system.options.c=1", "system.options={c: 1}"])
def test_old_keys_that_cannot_change_in_a_resumed_run(
    trained: Path, tmp_path: Path, checkpoint: bool, override: str
) -> None:
    run_dir = Path(shutil.copytree(trained, tmp_path / "run"))
    if not checkpoint:
        shutil.rmtree(run_dir / "checkpoints")
    told = complaint(f"resume={run_dir}", override)
    assert "cannot change when a run is resumed" in told and told.startswith("system.options")


def test_runs_are_opened_with_old_keys(trained: Path) -> None:
    with pytest.warns(FutureWarning, match=r"system\.options\.c is called system\.rule_options\.c now"):
        trainer = open_run(trained, {"system.options.c": 2})
    assert trainer.config.system.rule_options["c"] == 2
    trainer.close()


def test_new_keys_of_a_stored_file_win_over_old_ones() -> None:
    tree = old_tree(load_config(["system=softsync", "system.corrections=[kl_gate]", "algorithm.masks=[dppo]"]))
    tree["system"] |= {"options": {"c": 2, "root": 2, "trust_kl": 0.1}, "rule_options": {"c": 3}}
    tree["system"]["correction_options"] = {"kl_gate": {"trust_kl": 0.2}}
    tree["algorithm"]["mask_options"] = {"dppo": {"tv_bound": 0.3}}
    tree["run"]["logger_options"] = {"unheard": {"project": "mine"}}
    new = old_options.migrated(tree)
    assert new["system"]["rule_options"] == {"c": 3} and new["system"]["weight_options"] == {"root": 2}
    assert new["system"]["correction_options"] == {"kl_gate": {"trust_kl": 0.2}}
    assert new["algorithm"]["mask_options"]["dppo"]["tv_bound"] == 0.3
    assert new["run"]["logger_options"] == {"unheard": {"project": "mine"}}
    tree["system"]["rule_options"] = 3
    assert old_options.migrated(tree)["system"]["rule_options"] == 3, "refused later, by its key"


def test_options_of_the_data_loader_that_are_not_stored_have_their_defaults(tmp_path: Path) -> None:
    """Earlier versions stored them as they were given."""
    config = load_config(["delays.loader.kind=lognormal", "delays.loader.seconds=1"])
    runs = []
    for name, options in {"old": {}, "foreign": {"alpha": 2.0}, "new": {"sigma": 0.5}, "other": {"sigma": 1}}.items():
        (tmp_path / name).mkdir()
        changed = plain(config.replace({"delays.loader.options": options}))
        (tmp_path / name / "config.yaml").write_text(yaml.safe_dump(changed, sort_keys=False))
        runs.append(read_run(tmp_path / name))
    assert [len(group.runs) for group in group_replicates(runs)] == [3, 1]


def test_options_of_a_plugin_that_is_not_imported(tmp_path: Path) -> None:
    """They are below the one name that nobody knows; once it is imported, it has those that are its own."""
    config = load_config(["system=parallax"])
    tree = old_tree(config.replace({"system.rule": "unheard"}))
    tree["system"]["options"] |= {"share": 0.25, "trust_kl": 0.5}
    new = old_options.migrated(tree)["system"]
    assert new["rule_options"] == {"coalesce": False, "share": 0.25} and new["correction_options"] == {
        "kl_gate": {"trust_kl": 0.5}
    }
    assert "options" not in new


@pytest.fixture
def shared() -> Iterator[None]:
    from stellaris_jax import Rule, knob

    @register.rule("unheard")
    class Unheard(Rule):
        trust_kl: float = knob(1.0, "an option that a correction has, too")

    yield
    del register.rule._entries["unheard"]


def test_a_plugin_gets_the_stored_options_that_it_has(shared: None) -> None:
    tree = old_tree(load_config(["system=parallax", "system.rule=unheard"]))
    tree["system"]["options"] = {"trust_kl": 0.5}
    config = Config().replace({"system.rule": "unheard", "system.rule_options": {"share": 0.25}})
    tree["system"]["options"]["share"] = 0.25
    assert old_options.corrected(config, lambda: tree).system.rule_options == {"trust_kl": 0.5}
    assert old_options.corrected(config, lambda: plain(config)) == config


@pytest.mark.parametrize("broken", [{"system": {"options": 3}}, {"system": 3}, {"run": {"options": []}}, {}])
def test_what_is_no_configuration_stays_as_it_is(broken: dict[str, Any]) -> None:
    assert old_options.migrated(broken) == broken
