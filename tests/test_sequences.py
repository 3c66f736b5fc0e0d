"""Losses of completions: group-relative objectives, means over sequences, and masks of sequences, against NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_tokens import group_advantages, loss

from stellaris_jax import Trainer, load_config
from stellaris_jax.agent.advantages import Group
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs, Samples
from stellaris_jax.agent.losses.masks import MaskInputs, OffPolicySequence
from stellaris_jax.agent.losses.sequences import GRPO, GSPO
from stellaris_jax.agent.networks.distributions import Categorical
from stellaris_jax.config.tree import Config

T, N, V, SIZE = 5, 8, 7, 4
seeds = st.integers(0, 2**32 - 1)


class Drawn:
    """Completions of random lengths, under two policies."""

    def __init__(self, seed: int):
        random = np.random.default_rng(seed)
        self.lengths = random.integers(1, T + 1, N)
        self.valid = np.arange(T)[:, None] < self.lengths
        self.actor, self.learner = (random.normal(size=(T, N, V)).astype(np.float32) for _ in range(2))
        self.action = random.integers(0, V, (T, N)).astype(np.int32)
        self.returns = random.integers(0, 2, N).astype(np.float32)
        log_prob = Categorical(V).log_prob
        self.before = np.asarray(log_prob(jnp.asarray(self.actor), jnp.asarray(self.action)))
        self.log_ratio = np.asarray(log_prob(jnp.asarray(self.learner), jnp.asarray(self.action))) - self.before

    @property
    def by_completion(self) -> list[list[float]]:
        """log(pi / mu) of each token of each completion."""
        return [[float(x) for x in self.log_ratio[:length, i]] for i, length in enumerate(self.lengths)]

    def inputs(self, advantage: Any, mean: str) -> LossInputs:
        flat = jax.tree.map(
            lambda x: jnp.asarray(x).reshape(-1, *x.shape[2:]),
            (np.zeros((T, N)), self.action, self.actor, self.before, self.valid, self.learner, np.asarray(advantage)),
        )
        obs, action, actor, before, valid, learner, advantages = flat
        batch = Samples(obs, action, actor, before, None, advantages, None, valid)
        hyper = Hyper.of(Config().replace({"algorithm.entropy_coefficient": 0.0}))
        return LossInputs(batch, Categorical(V), hyper, 0.0, T, learner, None, loss_mean=mean)


@pytest.mark.parametrize("leave_one_out", [True, False])
@pytest.mark.parametrize("scaled", [True, False])
@given(seeds)
@settings(max_examples=20, deadline=None)
def test_advantages_of_groups(scaled: bool, leave_one_out: bool, seed: int) -> None:
    drawn = Drawn(seed)
    ends = np.arange(T)[:, None] == drawn.lengths - 1
    reward = np.where(ends, drawn.returns, 0.0).astype(np.float32)
    valid, never = jnp.asarray(drawn.valid), jnp.zeros((T, N), bool)
    steps = AdvantageInputs(jnp.asarray(reward), None, None, jnp.asarray(ends), never, valid, None, 1.0, 1.0)
    options = {"size": SIZE, "scaled": scaled, "leave_one_out": leave_one_out}
    found = np.asarray(Group(options).estimate(steps).advantage)
    expected = group_advantages([float(x) for x in drawn.returns], SIZE, scaled, leave_one_out)
    for i, length in enumerate(drawn.lengths):
        np.testing.assert_allclose(found[:length, i], expected[i], atol=1e-5)


@pytest.mark.parametrize("mean", ["samples", "sequences", "constant"])
@pytest.mark.parametrize(("kind", "by_sequence"), [(GRPO, False), (GSPO, True)])
@given(seeds)
@settings(max_examples=10, deadline=None)
def test_losses(kind: Any, by_sequence: bool, mean: str, seed: int) -> None:
    drawn = Drawn(seed)
    advantages = group_advantages([float(x) for x in drawn.returns], SIZE, scaled=False)
    every = np.broadcast_to(np.array(advantages, np.float32), (T, N))
    algorithm = kind({"clip_low": 0.2, "clip_high": 0.28})
    found, metrics = algorithm.loss(drawn.inputs(every, mean))
    expected = loss(drawn.by_completion, advantages, 0.2, 0.28, mean, T, by_sequence)
    np.testing.assert_allclose(float(found), expected, rtol=2e-4, atol=1e-5)
    same = [float(a == 0) for a in advantages]
    tokens = sum(flag * length for flag, length in zip(same, drawn.lengths, strict=True)) / drawn.lengths.sum()
    np.testing.assert_allclose(float(metrics["equal_groups"]), tokens, atol=1e-6)


def test_padding_has_no_gradient() -> None:
    drawn = Drawn(3)
    every = np.ones((T, N), np.float32)
    for kind in (GRPO, GSPO):
        for mean in ("samples", "sequences", "constant"):
            inputs = drawn.inputs(every, mean)

            def of(learner: jax.Array, inputs: LossInputs = inputs, kind: Any = kind) -> jax.Array:
                return kind().loss(inputs._replace(parameters=learner))[0]

            gradient = np.asarray(jax.grad(of)(inputs.parameters)).reshape(T, N, V)
            assert np.abs(gradient[drawn.valid]).max() > 0.0
            assert (gradient[~drawn.valid] == 0.0).all()


def test_a_penalty_towards_the_reference() -> None:
    """k3 = q - 1 - log q with q = pi_ref / pi, as a mean over tokens."""
    drawn, random = Drawn(4), np.random.default_rng(5)
    reference = random.normal(size=(T * N, V)).astype(np.float32)
    inputs = drawn.inputs(np.zeros((T, N), np.float32), "samples")
    inputs = inputs._replace(batch=inputs.batch._replace(target_policy=jnp.asarray(reference)))
    loss_, _ = GRPO({"reference": True, "reference_kl": 0.5}).loss(inputs)
    log_prob = Categorical(V).log_prob
    log_ratio = np.asarray(log_prob(jnp.asarray(reference), inputs.batch.action) - inputs.log_prob, np.float64)
    expected = 0.5 * (np.exp(log_ratio) - 1 - log_ratio)[drawn.valid.reshape(-1)].mean()
    np.testing.assert_allclose(float(loss_), expected, rtol=1e-5)


def test_masks_of_sequences() -> None:
    drawn = Drawn(6)
    advantage = np.broadcast_to(np.where(drawn.returns > 0, 1.0, -1.0), (T, N)).astype(np.float32)
    flat = [jnp.asarray(x).reshape(-1) for x in (drawn.before + drawn.log_ratio, drawn.before, advantage, drawn.valid)]
    seen = MaskInputs(*flat, discrete=True, steps=T)
    found = np.asarray(OffPolicySequence({"by_sequence": True, "opsm_bound": 0.1}).weight(seen)).reshape(T, N)
    for i, log_ratio in enumerate(drawn.by_completion):
        masked = drawn.returns[i] == 0 and -np.mean(log_ratio) > 0.1
        assert (found[: drawn.lengths[i], i] == float(not masked)).all()


TOKENS = [
    "env=tokens/sort", "env.kwargs={length: 3, group: 4}", "env.num_envs=16", "algorithm.rollout_length=4",
    "network.options={layers: 1, heads: 2, width: 8}", "algorithm.minibatches=4", "system.learners=2",
    "system.versions=8", "warm_start.updates=150", "warm_start.batch=64", "warm_start.learning_rate=1e-2",
    "evaluation.episodes=4", "evaluation.points=1", "total_steps=384",
]  # fmt: skip


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.options.reference=true"],
        ["system.actors=independent", "system.actor_shards=2", "system.sync_steps=2", "network.options.recompute=true"],
        ["algorithm=gspo", "algorithm.minibatches=4", "system.actors=pipelined"],
    ],
)
def test_runs_learn_from_completions(overrides: list[str]) -> None:
    trainer = Trainer(load_config([*TOKENS, *overrides]))
    before = np.asarray(trainer.state.params)
    records = trainer.run()
    after = np.asarray(trainer.state.params)
    assert len(records) == 6 and np.isfinite(after).all() and (before != after).any()
    shares = [record["equal_groups"] for record in records[1:]]  # pipelined actors' first round has no gradients
    assert all(0.0 <= share <= 1.0 for share in shares) and min(shares) < 1.0
    trainer.close()


def test_fresh_data_have_ratio_one() -> None:
    """One minibatch of the version that acted: actor and learner agree."""
    one = ["algorithm.minibatches=1", "system.learners=1", "system=allreduce", "platform.gpus=1"]
    records = Trainer(load_config([*TOKENS, *one])).run()
    assert all(record["m2"] < 1e-9 for record in records)
    mixed = Trainer(load_config([*TOKENS, *one, "system.actor_precision=bfloat16"])).run()
    assert max(record["m2"] for record in mixed) > 1e-8
