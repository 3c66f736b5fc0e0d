"""Programs for accelerators compute what those for CPUs do: their forms, traced and run on a CPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Event, current_thread

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax.agent.networks.distributions import kept_log_softmax
from stellaris_jax.engine import prepare, seed_states
from stellaris_jax.engine.round_steps import loop
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.run import open_run, train
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

COMMON = [
    "env=gymnax/cartpole",
    "env.num_envs=8",
    "algorithm.rollout_length=16",
    "algorithm.epochs=2",
    "algorithm.minibatches=4",
    "network.hidden=[16]",
    "total_steps=1e6",
    "evaluation.points=0",
    "engine.chunk_rounds=2",
]


def parameters(overrides: list[str]) -> np.ndarray:
    trainer = Trainer(load_config([*COMMON, *overrides]))
    trainer.step()
    return np.asarray(trainer.state.params)


@pytest.mark.parametrize(
    "overrides",
    [
        ["system=stellaris"],
        ["system=stellaris", "network.memory=gru"],
        ["system=stellaris", "engine.lanes=4", "algorithm.masks=[icepop]"],
        ["env=gymnax/spaceinvaders_minatar", "system=central"],
        ["system=central", "num_seeds=2", "engine.members=together"],
        ["system=central", "scaling=hydrozoa"],
        [
            "system=async",
            "system.actors=independent",
            "system.actor_shards=4",
            "network.memory=lstm",
            "algorithm.loss_mean=constant",
        ],
    ],
    ids=["peers", "memory", "lanes", "images", "seeds", "fewer waves", "independent"],
)
def test_forms_agree(overrides: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = parameters(overrides)
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    np.testing.assert_allclose(parameters(overrides), on_cpu, rtol=2e-4, atol=2e-6)


def test_a_counted_loop_has_turns_that_do_nothing() -> None:
    """Every index once, and -1 in the turns that are too many."""

    def body(w: jax.Array, so_far: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        turn, seen = so_far
        return turn + 1, seen.at[turn].set(w)

    start = (jnp.int32(0), jnp.full(6, -2))
    for bounds, expected in (((3, 6), [3, 4, 5, -1, -1, -2]), ((5, 5), [-1] * 5 + [-2]), ((0, 5), [0, 1, 2, 3, 4, -2])):
        turns, seen = loop(jnp.asarray(bounds), body, start, 5)
        assert int(turns) == 5 and seen.tolist() == expected


def test_a_call_that_waits_leaves_its_caller_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next chunk is planned while another thread is in the call, and a failure of the call is the step's."""
    monkeypatch.setattr(seed_states, "calls_wait", lambda: True)
    trainer = Trainer(load_config([*COMMON, "system=central"]))
    placed, planner = trainer.engine.placed, planner_of(trainer.executor)
    plan_ahead, planned, order = planner.plan_ahead, Event(), list[str]()

    def call(*arguments: object) -> Callable[[], object]:
        program = placed(*arguments)  # type: ignore[arg-type]

        def slow() -> object:
            assert planned.wait(60), "nothing was planned meanwhile"
            order.append(current_thread().name.partition("_")[0])
            return program()

        return slow

    def ahead(in_flight: list[int] | None) -> None:
        plan_ahead(in_flight)
        order.append("planned")
        planned.set()

    monkeypatch.setattr(planner, "plan_ahead", ahead)
    monkeypatch.setattr(trainer.engine, "placed", call)
    trainer.step()
    assert order == ["planned", "caller"]

    def fails(*arguments: object) -> Callable[[], object]:
        return lambda: 1 / 0

    monkeypatch.setattr(trainer.engine, "placed", fails)
    with pytest.raises(ZeroDivisionError):
        trainer.step()


def test_rounds_with_the_host_are_executed_by_their_caller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their environments belong to its thread, and the state before them is kept."""
    overrides = ["env=gymnasium/cartpole", "system=async", "system.actors=independent", "system.actor_shards=4"]
    alone = parameters(overrides)
    monkeypatch.setattr(seed_states, "calls_wait", lambda: True)
    monkeypatch.setattr(seed_states, "begun", lambda call: pytest.fail("a thread would step environments"))
    np.testing.assert_array_equal(parameters(overrides), alone)


def test_a_run_and_its_continuation_are_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Evaluations and checkpoints come between calls that wait."""
    rounds = 8 * 16

    def trained(*overrides: str) -> None:
        train(load_config([*overrides, "run.progress=false", "evaluation.points=4", "evaluation.episodes=4"]))

    new = [*COMMON, "system=stellaris", "run.loggers=[]", "checkpoint.interval=1", "algorithm.anneal=false"]
    trained(*new, f"run.dir={tmp_path / 'whole'}", f"total_steps={8 * rounds}")
    monkeypatch.setattr(seed_states, "calls_wait", lambda: True)
    trained(*new, f"run.dir={tmp_path / 'parts'}", f"total_steps={4 * rounds}")
    trained(f"resume={tmp_path / 'parts'}", f"total_steps={8 * rounds}")
    whole, parts = (open_run(str(tmp_path / name)) for name in ("whole", "parts"))
    assert whole.round == parts.round == 8
    np.testing.assert_array_equal(whole.state.params, parts.state.params)


def test_critics_see_larger_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """A whole fragment at once where a CPU would take it in parts."""
    loops: list[list[int]] = []

    class Network:
        def value(self, tree: dict[str, object], obs: jax.Array) -> jax.Array:
            return obs[..., 0]

    obs = np.ones((64, 256, 3), np.float32)
    for platform in ("cpu", "gpu"):
        monkeypatch.setattr(jax, "default_backend", lambda platform=platform: platform)
        values = prepare.values(Network(), {}, jax.numpy.asarray(obs))  # type: ignore[arg-type]
        np.testing.assert_array_equal(values, obs[..., 0])
        program = jax.make_jaxpr(lambda x: prepare.values(Network(), {}, x))(obs)  # type: ignore[arg-type]
        loops.append([equation.params["length"] for equation in program.eqns if equation.primitive.name == "scan"])
    assert loops == [[4], []]


@pytest.mark.parametrize("masked", [False, True])
def test_log_probabilities_that_are_kept(masked: bool) -> None:
    """Values, gradients and second derivatives are the softmax's, of logits of -inf as well, under vmap and jit."""
    logits = np.random.default_rng(0).normal(size=(3, 5, 4))
    if masked:
        logits[..., 2] = -np.inf
    weights = np.random.default_rng(1).normal(size=logits.shape)

    def of(form: Callable[[jax.Array], jax.Array]) -> tuple[jax.Array, ...]:
        def loss(x: jax.Array, w: jax.Array) -> jax.Array:
            log_p = jnp.where(jnp.isfinite(x), form(x), 0.0)
            return jnp.sum(w * log_p * jnp.exp(log_p))

        def twice(x: jax.Array, w: jax.Array) -> jax.Array:
            return jax.jvp(lambda x: jax.grad(loss)(x, w), (x,), (jnp.where(jnp.isfinite(x), jnp.sin(w), 0.0),))[1]

        parts = (lambda x, w: form(x), loss, jax.grad(loss), twice)
        return tuple(jax.jit(jax.vmap(part))(jnp.asarray(logits), jnp.asarray(weights)) for part in parts)

    for ours, theirs in zip(of(kept_log_softmax), of(jax.nn.log_softmax), strict=True):
        assert not np.isnan(theirs).any()
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
