"""The configuration layer: schema, groups, overrides and files."""

from __future__ import annotations

import copy
import pickle
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from settings import complaint

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import Kind, register
from stellaris_jax.config.compose import choices, compose_config
from stellaris_jax.config.sections import EnvConfig
from stellaris_jax.config.shipped import shipped_configs
from stellaris_jax.config.stored import from_yaml, to_yaml, typed
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.execute.loading import load_config

# Precedence


def test_later_layers_override_earlier_ones() -> None:
    schema = Config().algorithm.minibatches
    group = load_config(["env=diagnostic/constant_reward"]).algorithm.minibatches
    env = load_config(["env=brax/hopper"]).algorithm.minibatches
    line = load_config(["algorithm.minibatches=64", "env=brax/hopper"]).algorithm.minibatches
    assert (schema, group, env, line) == (4, 8, 16, 64)


def test_chosen_network_overrides_that_of_the_environment() -> None:
    """`hidden` and `activation` are tuned for brax/reacher and MinAtar; keys on the command line still come last."""
    assert load_config(["env=brax/reacher"]).network.hidden == (128, 128)
    assert load_config(["network=mlp", "env=brax/reacher"]).network.hidden == (64, 64)
    config = load_config(["network.hidden=[32]", "network=minatar_cnn", "env=gymnax/breakout_minatar"])
    assert (config.network.torso, config.network.hidden, config.network.shared) == ("minatar_cnn", (32,), True)
    assert (config.algorithm.learning_rate, config.network.init) == (5e-3, "orthogonal")


def test_own_directory_adds_choices(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("name: mine\nrule: softsync\nrule_options: {c: 3}\n")
    (tmp_path / "env" / "own").mkdir(parents=True)
    (tmp_path / "env" / "own" / "task.yaml").write_text("# @package _global_\nenv: {name: brax/fast}\nseed: 9\n")
    assert load_config(["system=mine"], tmp_path).system.rule_options["c"] == 3
    config = load_config(["system=async", "env=own/task"], tmp_path)
    assert (config.system.rule, config.env.name, config.seed) == ("async", "brax/fast", 9)
    assert load_config(["env=gymnax/CartPole-v1"], tmp_path) == load_config()
    assert choices("system", tmp_path) == sorted([*choices("system"), "mine"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["seed=3", "system=ssp", "system.rho=2", "env=gymnax/acrobot"],
        [
            "algorithm.learning_rate=1e-2",
            "experiment=stellaris/hopper",
            "network.hidden=[4,4]",
            "system.rule_options.decay=1",
        ],
        ["env=envpool/Hopper-v4", "env.kwargs.frame_skip=2", "env.kwargs={a: [1, {b: x}]}", "env.kwargs.c=null"],
        ["system.corrections=[ess]", "evaluation={episodes: 3}", "scaling=nitro", "env.num_envs=${seed}", "seed=8"],
    ],
)
def test_kept_files_and_keys_of_their_own_are_what_hydra_composes(overrides: list[str]) -> None:
    from hydra import compose, initialize_config_dir

    from stellaris_jax.config import compose as module

    with module._composer(None) as composer:
        parsed = composer.parse(overrides)
        ours = [typed(composer.compose(parsed)) for _ in range(2)]
    with initialize_config_dir(str(shipped_configs()), version_base="1.3"):
        whole = typed(compose(module.PRIMARY, [str(one.input_line) for one in parsed]))
    assert ours == [whole, whole]


def test_files_are_read_again_once_they_have_changed(tmp_path: Path) -> None:
    preset = tmp_path / "algorithm" / "mine.yaml"
    preset.parent.mkdir()
    for epochs in (2, 31):
        preset.write_text(f"# @package _global_\nalgorithm:\n  epochs: {epochs}\n")
        assert compose_config(["algorithm=mine", "seed=4"], tmp_path).algorithm.epochs == epochs
    assert compose_config(["algorithm=mine"], tmp_path).seed == 0, "keys of one call are not the next one's"


def test_mistake_in_a_file_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    for text, expected in [
        ("lerners: 3", "system.lerners is not a config key; did you mean system.learners?"),
        ("learners: many", "system.learners must be an integer, not 'many'."),
    ]:
        (tmp_path / "system" / "mine.yaml").write_text(text)
        with pytest.raises(ConfigError) as caught:
            load_config(["system=mine"], tmp_path)
        assert str(caught.value) == expected
    with pytest.raises(ConfigError, match="nowhere does not exist"):
        load_config([], tmp_path / "nowhere")


@pytest.mark.parametrize("chosen", [["system=mine"], ["system=outer"], ["sweep=mine"]])
def test_aliases_in_own_files_are_refused(chosen: list[str], tmp_path: Path) -> None:
    """A few more lines of them would stand for more than there is memory."""
    bomb = "\n".join(["a0: &a0 [1]", *(f"a{i + 1}: &a{i + 1} [*a{i}, *a{i}]" for i in range(10))])
    for group in ("system", "sweep"):
        (tmp_path / group).mkdir()
        (tmp_path / group / "mine.yaml").write_text(f"name: mine\n{bomb}\n")
    (tmp_path / "system" / "outer.yaml").write_text("defaults: [mine]\n")
    with pytest.raises(ConfigError, match=r"mine\.yaml cannot be read .* line 3 has an alias, \*a0\.$"):
        compose_config(chosen, tmp_path)


def test_a_file_that_is_no_yaml_is_named(tmp_path: Path) -> None:
    (tmp_path / "system").mkdir()
    (tmp_path / "system" / "mine.yaml").write_text("a: [")
    (tmp_path / "system" / "another.yaml").write_text("- b")
    with pytest.raises(ConfigError, match=r"system/mine\.yaml cannot be read as a configuration: "):
        load_config(["system=mine"], tmp_path)


# Environments by name


@pytest.mark.parametrize(
    ("choice", "name"),
    [
        ("gymnax/MountainCar-v0", "gymnax/MountainCar-v0"),
        ("gymnax/mountaincar", "gymnax/MountainCar-v0"),
        ("brax/fast", "brax/fast"),
        ("diagnostic/constant_reward", "diagnostic/constant_reward"),
    ],
)
def test_environment_without_a_file(choice: str, name: str) -> None:
    config = load_config([f"env={choice}", "env.num_envs=32"])
    assert (config.env.name, config.env.num_envs, config.env.kwargs) == (name, 32, {})


@pytest.mark.parametrize("spelling", ["gymnax/Breakout-MinAtar", "gymnax/breakout-minatar", "Gymnax/BreakoutMinAtar"])
def test_other_spellings_find_the_tuned_file(spelling: str) -> None:
    assert load_config([f"env={spelling}"]) == load_config(["env=gymnax/breakout_minatar"])


def test_version_that_does_not_exist_is_not_replaced_by_the_tuned_one() -> None:
    assert "CartPole-v0" in complaint("env=gymnax/CartPole-v0")


# Values


def test_values_as_people_write_them() -> None:
    config = load_config(["total_steps=1.5e6", "algorithm.learning_rate=1", "env.kwargs.backend=spring", "run.name=7"])
    assert config.total_steps == 1_500_000 and isinstance(config.total_steps, int)
    assert config.algorithm.learning_rate == 1.0
    assert config.env.kwargs == {"backend": "spring"}
    assert config.run.name == "7"
    assert "1.5" in complaint("total_steps=1.5")


def test_configurations_never_change() -> None:
    config = Config(env=EnvConfig(kwargs={"deep": {"list": [1, {"x": 2}]}}))
    with pytest.raises(FrozenInstanceError):
        config.seed = 1
    with pytest.raises(FrozenInstanceError):
        config.env.num_envs = 1
    for mapping in (config.env.kwargs, config.env.kwargs["deep"], config.env.kwargs["deep"]["list"][1]):
        for change in ("update", "pop", "popitem", "clear", "setdefault", "__setitem__", "__delitem__", "__ior__"):
            with pytest.raises(TypeError, match="immutable"):
                getattr(mapping, change)("x", 1)
    for other in (pickle.loads(pickle.dumps(config)), copy.deepcopy(config), config.replace({})):
        assert other == config and hash(other) == hash(config)
    given = {"x": [1]}
    made = Config().replace({"env.kwargs": given})
    given["x"].append(2)
    assert made.env.kwargs == {"x": (1,)} and Config().env.kwargs == {} == load_config().env.kwargs


def test_replaced_values() -> None:
    config = Config().replace({"seed": 3, "env.kwargs.a.b": 1, "env.kwargs.c": 2, "delays.learner.options.sigma": 0.5})
    assert config.env.kwargs == {"a": {"b": 1}, "c": 2} and config.delays.learner.options == {"sigma": 0.5}
    assert config.replace({"seed": 0, "env.kwargs": {}, "delays.learner.options": {}}) == Config()
    for key, meant in (("algorithm.gama", "algorithm.gamma"), ("sed", "seed"), ("seed.x", "")):
        with pytest.raises(ConfigError, match=rf"{key} is not a config key.*{meant}"):
            Config().replace({key: 1})


# Run directories


def values(kind: object) -> st.SearchStrategy[object]:
    numbers = st.floats(allow_nan=False, allow_infinity=False)
    text = st.text(st.characters(codec="ascii", exclude_categories=["Cc"], exclude_characters="$?"))
    return {
        int: st.integers(),
        float: numbers,
        bool: st.booleans(),
        str: text,
        tuple[int, ...]: st.lists(st.integers()),
        tuple[float, ...]: st.lists(numbers),
        tuple[str, ...]: st.lists(text),
        float | None: st.none() | numbers,
        bool | None: st.none() | st.booleans(),
    }.get(kind, st.dictionaries(text.filter(str.isidentifier), st.one_of(st.integers(), numbers, text)))  # type: ignore[call-overload]


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_yaml_round_trip_is_exact(data: st.DataObject) -> None:
    import tempfile

    keys = [key for key in knobs() if key != "plugins"]  # which would be imported
    chosen = data.draw(st.lists(st.sampled_from(keys), unique=True, max_size=12))
    config = Config().replace({key: data.draw(values(knobs()[key].kind)) for key in chosen})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "config.yaml")
        path.write_text(to_yaml(config), encoding="utf-8")
        assert from_yaml(path) == config


def test_unreadable_run_configuration(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    with pytest.raises(ConfigError, match=r"config\.yaml"):
        from_yaml(path)
    for text in ("seed: [1", "", "- 1"):
        path.write_text(text)
        with pytest.raises(ConfigError, match=r"config\.yaml"):
            from_yaml(path)
    path.write_text("sead: 1")
    with pytest.raises(ConfigError, match="did you mean seed"):
        from_yaml(path)


def test_resume_takes_the_stored_configuration(tmp_path: Path) -> None:
    stored = load_config(["env=gymnax/acrobot", "system=ssp", "seed=5"])
    (tmp_path / "config.yaml").write_text(to_yaml(stored))
    config = load_config([f"resume={tmp_path}", "total_steps=2e6", "engine.lanes=4"])
    assert (config.env, config.system, config.seed) == (stored.env, stored.system, 5)
    assert (config.total_steps, config.engine.lanes) == (2_000_000, 4)
    assert config.run.dir == config.resume == str(tmp_path)
    for override in ("seed=6", "system=async", "env.num_envs=8"):
        message = complaint(f"resume={tmp_path}", override)
        assert override.partition("=")[0] in message and "total_steps" in message
    assert "an integer" in complaint(f"resume={tmp_path}", "total_steps=many")
    assert "holds no run" in complaint(f"resume={tmp_path / 'nowhere'}")


@pytest.mark.parametrize("linked", [False, True])
def test_a_file_that_comes_or_changes_is_read(linked: bool, tmp_path: Path) -> None:
    if linked:
        (tmp_path / "elsewhere").mkdir()
        (tmp_path / "system").symlink_to(tmp_path / "elsewhere", target_is_directory=True)
    else:
        (tmp_path / "system").mkdir()
    with pytest.raises(ConfigError, match="system=mine is not one of"):
        load_config(["system=mine"], tmp_path)
    file = tmp_path / "system" / "mine.yaml"
    for learners in (3, 4):
        file.write_text(f"defaults: [async, _self_]\nlearners: {learners}\n")
        assert load_config(["system=mine"], tmp_path).system.learners == learners
    file.unlink()
    with pytest.raises(ConfigError, match="system=mine is not one of"):
        load_config(["system=mine"], tmp_path)


def test_hydras_store_may_be_put_back_by_others() -> None:
    """Its pytest fixture does that, and applications have schemas of their own."""
    from hydra.core.config_store import ConfigStore
    from hydra.core.singleton import Singleton

    before = copy.deepcopy(Singleton.get_state())
    assert compose_config(["system=async", "algorithm=cispo"]).system.name == "async"
    Singleton.set_state(before)
    assert compose_config(["system=ssp", "algorithm=cispo"]).system.name == "ssp"
    ConfigStore.instance().store(name="schema", node={"mine": 1})
    assert compose_config(["system=softsync", "algorithm=cispo"]).system.name == "softsync"


def test_unknown_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered callbacks follow."""
    monkeypatch.setattr(register, "callback", Kind("callback"))
    assert complaint("run.callbacks=[nope]") == (
        "run.callbacks must be empty, not 'nope': no callback is registered; "
        "plugins=[FILE] imports what registers a callback."
    )
    for name in ("alarm", "stop-early", "nap"):
        register.callback(name)(print)
    assert complaint("run.callbacks=[stop-erly]") == (
        "run.callbacks must be some of alarm, stop-early, nap, not 'stop-erly'; did you mean stop-early?"
    )
    assert (
        complaint("run.callbacks=[x]") == "run.callbacks must be some of alarm, stop-early, nap, not 'x'; "
        "a callback of your own needs plugins=[FILE.py]."
    )
