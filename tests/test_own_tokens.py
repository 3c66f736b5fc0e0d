"""Token tasks of others, and what group advantages make of odd groups: each mistake is one sentence."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax import ConfigError, load_config
from stellaris_jax.agent.advantages import Group
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs, Samples
from stellaris_jax.agent.losses.common import mean as plain_mean
from stellaris_jax.agent.losses.sequences import GRPO
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.envs.suites.tokens import make
from stellaris_jax.envs.suites.tokens.env import token_env
from stellaris_jax.envs.suites.tokens.task import TokenTask


class Copy(TokenTask):
    """A letter is repeated."""

    name = "mine/copy"
    characters = "abcdefghijklmnopqrstuvwxyz"
    prompt_length, longest = 3, 4

    def prompt(self, key: jax.Array) -> Any:
        return jax.random.randint(key, (3,), 2, 28)

    def verify(self, prompt: jax.Array, completion: jax.Array) -> Any:
        return jnp.all(completion[:3] == prompt)

    def demonstrate(self, key: jax.Array, prompt: jax.Array) -> Any:
        return jnp.append(prompt, 1)


def changed(**members: Any) -> Any:
    return token_env(type("Changed", (Copy,), {"name": "mine/changed", **members}))()


def test_a_task_that_keeps_to_the_base_class() -> None:
    assert changed().action_space.n == 28


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"verify": lambda self, p, c: c == p[0]}, r"verify \(.*line \d+\) returns bool \[4\], not a scalar"),
        ({"verify": lambda self, p, c: None}, r"verify .* returns NoneType, not a scalar"),
        ({"verify": lambda self, p, c: jnp.sum(c) * 1j}, r"verify .* returns complex64 \[\], not a scalar"),
        ({"verify": lambda self, p, c: p[7, 7]}, r"verify .* fails \(IndexError: "),
        ({"prompt": lambda self, key: jax.random.uniform(key, (3,))}, r"prompt .* returns float32 \[3\], not integers"),
        ({"prompt": lambda self, key: jnp.arange(5)}, r"prompt .* returns int32 \[5\], not integers .*: \[3\]"),
        ({"demonstrate": lambda self, key, p: p}, r"demonstrate .* returns int32 \[3\], not integers .*: \[4\]"),
        ({"characters": "".join(map(chr, range(300, 600)))}, "has 300 characters; at most 254 are possible"),
        ({"characters": ""}, "has characters=''; at least 1 is needed"),
        ({"longest": 0}, "has longest=0; at least 1 is needed"),
        (
            {"prompt": lambda self, key: jax.random.randint(key, (3,), 2, 200)},
            r"prompt \(.*line \d+\) returns the token \d+; accepted: 0 to 27, as it has 26 characters",
        ),
        (
            {"demonstrate": lambda self, key, p: jnp.append(p, -5)},
            r"demonstrate \(.*line \d+\) returns the token -5; accepted: 0 to 27",
        ),
        (
            {"verify": lambda self, p, c: jnp.where(jnp.all(c[:3] == p), 1.0, jnp.nan)},
            r"verify \(.*line \d+\) returns nan for some completions; accepted: finite numbers",
        ),
        (
            {"prompt": lambda self, key: jnp.array([2, 3, 4])},
            r"of 4096 prompts \(1 different ones\) none is left for evaluations",
        ),
    ],
    ids=[
        "shape",
        "none",
        "complex",
        "error",
        "floats",
        "length",
        "demonstration",
        "vocabulary",
        "no characters",
        "no tokens",
        "foreign prompts",
        "foreign demonstrations",
        "no number",
        "constant",
    ],
)
def test_mistakes_of_a_task(members: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        changed(**members)


@pytest.mark.parametrize("characters", [130, 254])
def test_wrong_characters_of_large_vocabularies(characters: int) -> None:
    """The wrong one is another of the task's characters, also where an eighth bit would overflow."""
    letters = "".join(map(chr, range(300, 300 + characters)))

    def prompt(self: Any, key: jax.Array) -> jax.Array:
        return jax.random.randint(key, (3,), characters - 8, characters + 2)

    task = changed(characters=letters, prompt=prompt).task
    keys = jax.random.split(jax.random.key(0), 256)
    prompts, wrong = jax.vmap(lambda key: task.demonstration(key, 1.0))(keys)
    right = np.asarray(jnp.concatenate([prompts, jnp.ones((256, 1), jnp.uint8)], axis=1))
    wrong = np.asarray(wrong)
    assert ((wrong != right).sum(axis=1) == 1).all() and wrong.max() < characters + 2
    assert (wrong[:, :3] > 1).all()


@pytest.mark.parametrize("value", ["abc", True, [1]])
def test_float_options_are_numbers(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"env.kwargs.slack=.* must be a number"):
        make("tail", slack=value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["env.kwargs.group=1"], "env.kwargs.group=1 must be at least 2"),
        (["env.kwargs.group=3"], r"env.kwargs.group=3 must divide env.num_envs=\d+"),
        (["algorithm.advantage_options.size=3"], "advantage_options.size=3 must divide"),
        (
            ["system=areal", "system.sync_steps=3"],
            "sync_steps=3 must divide algorithm.rollout_length=4, or be 0, or be",
        ),
    ],
)
def test_the_key_that_was_given_is_named(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_config(["env=tokens/addition", "system=sync", *overrides])


def test_areal_generates_short_completions_whole() -> None:
    """Its interval is longer than such a completion."""
    assert load_config(["env=tokens/addition", "system=areal", "env.num_envs=256"]).segments == 1
    assert load_config(["env=tokens/tail", "system=areal", "env.num_envs=256"]).segments == 16


def advantages(returns: list[float], **options: Any) -> np.ndarray:
    ends = jnp.ones((1, len(returns)), bool)
    steps = AdvantageInputs(jnp.array([returns]), None, None, ends, ~ends, None, None, gamma=1.0, gae_lambda=1.0)
    estimate = Group({"size": len(returns), **options}).estimate(steps)
    return np.asarray(estimate.advantage[0])  # type: ignore[index]


@pytest.mark.parametrize("value", [0.0, 0.7, 100.1, 1000.1, -3e6])
@pytest.mark.parametrize("options", [{}, {"leave_one_out": True}], ids=["mean", "leave one out"])
@pytest.mark.parametrize("size", [3, 6, 8])
def test_equal_returns_have_no_advantage(value: float, options: dict[str, Any], size: int) -> None:
    assert advantages([value] * size, **options).tolist() == [0.0] * size


def test_groups_that_differ_keep_their_advantages() -> None:
    returns = np.array([0.0, 0.5, 0.5, 1.0])
    expected = (returns - returns.mean()) / np.sqrt(returns.var() + 1e-8)
    np.testing.assert_allclose(advantages(returns.tolist()), expected, rtol=1e-6)


@pytest.mark.parametrize("loss_mean", ["samples", "sequences", "constant"])
def test_what_is_measured_does_not_depend_on_the_mean_of_the_loss(loss_mean: str) -> None:
    """Padding is no sample, and long completions count by their tokens; the loss has its own mean."""
    rng = np.random.default_rng(0)
    steps, sequences = 6, 4
    lengths = np.array([6, 1, 3, 2])
    valid = (np.arange(steps)[:, None] < lengths).reshape(-1)
    rows = steps * sequences
    logits = jnp.array(rng.normal(size=(rows, 5)), jnp.float32)
    action = jnp.array(rng.integers(0, 5, rows))
    distribution = Categorical(5)
    before = distribution.log_prob(logits, action) + jnp.array(rng.normal(size=rows), jnp.float32)
    batch = Samples(
        obs=jnp.zeros((rows, 1)), action=action, distribution=logits, log_prob=before, value=None,
        advantage=jnp.array(rng.normal(size=rows), jnp.float32), target=None, valid=jnp.array(valid),
    )  # fmt: skip
    config = load_config(["env=tokens/addition", "system=sync", f"algorithm.loss_mean={loss_mean}"])
    inputs = LossInputs(batch, distribution, Hyper.of(config), 0.0, steps, logits, None, loss_mean=loss_mean)
    _, metrics = GRPO({}).bound({}).loss(inputs)
    clipped = GRPO({}).is_clipped(jnp.exp(inputs.log_prob - before), inputs).astype(jnp.float32)
    np.testing.assert_allclose(metrics["clip_fraction"], plain_mean(clipped, batch.valid), rtol=1e-6)
    np.testing.assert_allclose(metrics["entropy"], plain_mean(distribution.entropy(logits), batch.valid), rtol=1e-6)
    reference = inputs._replace(loss_mean="samples")
    same = np.isclose(metrics["policy_loss"], GRPO({}).bound({}).loss(reference)[1]["policy_loss"], rtol=1e-5)
    assert same == (loss_mean == "samples")
