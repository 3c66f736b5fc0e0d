"""The config files that ship: each composes, and has the values of its paper."""

from __future__ import annotations

from pathlib import Path

import pytest
from settings import numbers_and_options

from stellaris_jax.base.registry import register
from stellaris_jax.config.compose import GROUPS, choices
from stellaris_jax.config.shipped import shipped_configs
from stellaris_jax.config.tree import Config, knobs
from stellaris_jax.execute.loading import check_and_start_jax, load_config
from stellaris_jax.timeline import Timeline

FILES = [(group, choice) for group in GROUPS for choice in choices(group)]


def test_schema_alone_is_valid() -> None:
    check_and_start_jax(Config())


NEEDED = {
    ("platform", "hpc"): ["prices=hpc"],
    ("platform", "lambda"): ["prices=lambda", "system.learners=4"],
    ("platform", "containers"): ["prices=containers", "system=minionsrl"],
    ("scaling", "adapt"): ["scaling.target=100"],
    ("delays", "trace"): [f"delays.log={Path(__file__).parent.parent / 'examples' / 'cluster' / 'jobs.jsonl'}"],
    ("prices", "lambda"): ["platform=lambda", "system.learners=4"],
    ("prices", "containers"): ["platform=containers", "system=minionsrl"],
    ("tuned", "dqn"): ["algorithm=dqn"],
    ("tuned", "dqn_gymnax_acrobot"): ["algorithm=dqn", "env=gymnax/acrobot"],
    ("tuned", "dqn_gymnax_breakout_minatar"): ["algorithm=dqn", "env=gymnax/breakout_minatar"],
    ("tuned", "dqn_gymnax_cartpole"): ["algorithm=dqn"],
    ("tuned", "sac"): ["algorithm=sac", "env=gymnax/pendulum"],
    ("tuned", "sac_gymnax_pendulum"): ["algorithm=sac", "env=gymnax/pendulum"],
}
"""Keys that a file must have."""


@pytest.mark.parametrize(("group", "choice"), FILES, ids=["=".join(pair) for pair in FILES])
def test_every_file_composes_and_validates(group: str, choice: str) -> None:
    config = load_config([f"{group}={choice}", *NEEDED.get((group, choice), [])])
    if group not in (
        "env",
        "tuned",
        "preprocessing",
        "network",
        "experiment",
        "sweep",
    ):  # these have no name of their own
        assert getattr(config, group).name == choice


def test_every_config_file_is_a_choice() -> None:
    files = {path.relative_to(shipped_configs()).with_suffix("") for path in shipped_configs().rglob("*.yaml")}
    spaces = {file for file in files if file.parts[0] in ("tune", "choose")}  # what is searched is no configuration
    assert files - spaces == {Path(group, choice) for group, choice in FILES} | {Path("train"), Path("untuned")}


def test_every_scaling_rule_has_a_preset() -> None:
    assert set(knobs()["scaling.rule"].names) == set(choices("scaling")) == set(register.scaling)


def test_every_rule_has_a_preset() -> None:
    assert set(knobs()["system.rule"].names) == set(register.rule) <= set(choices("system"))


@pytest.mark.parametrize("system", ["allreduce", "central", "async", "softsync", "ssp"])
def test_baselines_are_serverful_and_without_truncation(system: str) -> None:
    config = load_config([f"system={system}"]).system
    assert (config.rule, config.learner_billing, config.truncation) == (system, "serverful", "none")
    # Only n-softsync weighs by staleness, by 1 / staleness (Zhang et al. 2016).
    assert (config.weights, config.weight_options.get("root")) == (
        ("power", 1) if system == "softsync" else ("constant", None)
    )


def test_paper_values() -> None:
    """Section VIII of the paper: d = 0.96, v = 3, rho = 1; 8 and 64 slots; $11.016 and $84.96 an hour."""
    system = load_config().system
    assert (system.rule_options["decay"], system.weight_options["root"], system.rho, system.learners) == (
        0.96,
        3,
        1.0,
        8,
    )
    for overrides, slots, dollars in (([], 8, 11.016), (["platform=hpc", "prices=hpc"], 64, 84.96)):
        config = load_config(overrides)
        prices = config.prices
        assert config.platform.gpus * config.platform.slots_per_gpu == slots
        hourly = prices.learner_vm * prices.learner_vms + prices.actor_vm * prices.actor_vms
        assert hourly == pytest.approx(dollars)


def test_delay_models_share_their_medians() -> None:
    constant, pareto = load_config(["delays=constant"]).delays, load_config(["delays=pareto"]).delays
    lognormal = load_config(["delays=lognormal"]).delays
    for key in ("learner", "actor", "aggregate"):
        seconds = getattr(constant, key).seconds
        assert getattr(lognormal, key).seconds == seconds
        tail = getattr(pareto, key)
        assert tail.seconds * 2 ** (1 / tail.options["alpha"]) == pytest.approx(seconds, rel=0.01)


SAMPLES = {"stellaris": (4096, 256), "nitro": (64 * 256, 64 * 16), "minionsrl": (65_536, 6_144)}
SAMPLES["stellaris_impact"] = SAMPLES["stellaris"]
"""Samples of the widest round, on MuJoCo and on Atari."""


@pytest.mark.parametrize("choice", choices("experiment"))
def test_experiments_are_table_iii(choice: str) -> None:
    """SC'24, Table III, whatever the environment is tuned to, for 50 rounds; Nitro and MinionsRL take it over."""
    platform = ["platform=regular", "prices=us_east_2", "scaling=fixed"]
    config = load_config([f"experiment={choice}", "system=rllib", "system.learners=1", *platform])
    impact, atari = choice.startswith("stellaris_impact/"), config.network.torso == "rllib_cnn"
    algorithm, delays = config.algorithm, config.delays.name
    paper, _, env = choice.partition("/")
    assert algorithm.name == ("impact" if impact else "ppo")
    assert delays == env if paper.startswith("stellaris") else delays.startswith(f"{paper}_")
    table = {"learning_rate": (5e-5, 5e-4), "clip": (0.3, 0.4), "kl_coefficient": (0.2, 1.0), "kl_target": (0.01, 0.01)}
    table |= {"entropy_coefficient": (0.0, 0.01), "value_coefficient": (1.0, 1.0), "gamma": (0.99, 0.99)}
    found = vars(numbers_and_options(algorithm))
    assert {key: found[key] for key in table} == {key: row[impact] for key, row in table.items()}
    samples = config.env.num_envs * algorithm.rollout_length
    assert samples == SAMPLES[paper][atari] and config.total_steps == 50 * samples
    if config.scaling.maximum:
        assert config.env.num_envs == config.scaling.maximum == {"nitro": 64, "minionsrl": 32}[paper]
    assert (config.env.frame_stack, config.env.life_loss) == ((3, True) if atari else (0, False))
    assert not (config.network.shared or config.env.normalize_observation or config.env.overlap)
    assert config.system.name == "rllib"


def test_rounds_of_minionsrl_take_what_the_paper_says() -> None:
    """About 5 s with one actor and 9 s with 32 on MuJoCo, 25 s and 45 s on Atari (AAAI'24, section 5)."""
    for env, one, many in (("hopper", 5.0, 9.0), ("qbert", 25.0, 45.0)):
        constant = {"delays.learner.kind": "constant", "delays.actor.kind": "constant"}
        config = load_config([f"experiment=minionsrl/{env}"]).replace(constant)
        algorithm, timeline = config.algorithm, Timeline.of(config, 0)
        for actors, seconds in ((1, one), (32, many)):
            begin = timeline.usage.seconds
            timeline.next_round(actors, algorithm.epochs * -(-algorithm.minibatches * actors // 32))
            assert timeline.usage.seconds - begin == pytest.approx(seconds, rel=0.05)
