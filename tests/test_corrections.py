"""Corrections of gradients: identity on what is fresh, their formulas, and the engine they stand in."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import examples
from training import assert_resumes, steps, tiny

from stellaris_jax import Trainer, load_config
from stellaris_jax.agent.fractional import varying_momentum
from stellaris_jax.agent.hyper import Hyper
from stellaris_jax.agent.losses.common import DRIFT, METRICS, Metrics
from stellaris_jax.base.registry import register
from stellaris_jax.config.optioned import options_of
from stellaris_jax.engine.aggregator import aggregator_of as engine_aggregator
from stellaris_jax.engine.aggregator import staleness_weighted
from stellaris_jax.engine.corrections import Context, Correction, Stack
from stellaris_jax.engine.spec import ProgramSpec

L, P = 3, 5
NAMES = list(register.correction)
OPTIONS = st.fixed_dictionaries(
    {
        "compensation": st.floats(0.0, 5.0),
        "compensation_memory": st.sampled_from([0.0, 0.5, 0.95]),
        "gap_memory": st.floats(0.0, 0.999),
        "momentum_memory": st.floats(0.0, 0.999),
        "trust_kl": st.floats(1e-4, 10.0),
        "norm_ratio": st.floats(1e-3, 10.0),
        "norm_memory": st.floats(0.0, 0.999),
    }
)
pytestmark = pytest.mark.usefixtures("shared_programs")


def correction(name: str, **options: float) -> Correction:
    made: Correction = register.correction[name](options)
    return made.bound({key: jnp.float32(value) for key, value in options.items()})


def metrics(ess: Any = 1.0) -> Metrics:
    """Factors of gradients whose minibatches have this effective sample size."""
    zeros, ess = jnp.zeros(L), jnp.broadcast_to(jnp.asarray(ess, jnp.float32), L)
    return {**dict.fromkeys((*METRICS, *DRIFT), zeros), "ratio": jnp.ones(L), "ratio_square": 1.0 / ess}


def drawn(seed: int, staleness: Any = 0) -> tuple[Stack, Context]:
    """Random gradients, some of them without weight, on policies that are random if they are stale."""
    random = np.random.default_rng(seed)
    stale = jnp.broadcast_to(jnp.asarray(staleness, jnp.int32), L)
    newest = random.normal(size=P).astype(np.float32)
    away = random.normal(size=(L, P)).astype(np.float32) * np.asarray(stale > 0)[:, None]
    stack = Stack(
        jnp.asarray(random.normal(size=(L, P)), jnp.float32),
        jnp.asarray(random.choice([0.0, 0.3, 1.0], L), jnp.float32),
    )
    kl = jnp.asarray(random.exponential(size=L) * np.asarray(stale > 0), jnp.float32)
    return stack, Context(stale, jnp.asarray(newest + away), jnp.asarray(newest), metrics(), kl)


def seasoned(chosen: Correction, seed: int) -> Any:
    """A state in which something has happened already."""
    state = chosen.init(jnp.zeros(P))
    for step in range(3):
        stack, context = drawn(seed + step, staleness=[0, 2, 5])
        _, state = chosen.update(stack, state, context)
        state = chosen.published(state, 0.1 * stack.gradients[0], jnp.bool_(True))
    return state


def equal(one: Any, other: Any) -> None:
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.parametrize("name", NAMES)
@examples
@given(options=OPTIONS, seed=st.integers(0, 99))
def test_fresh_gradients_are_left_as_they_are(name: str, options: dict[str, float], seed: int) -> None:
    """To the bit, whatever has happened before, and whatever the options."""
    known = options_of(type(correction(name)))
    chosen = correction(name, **{key: value for key, value in options.items() if key in known})
    stack, context = drawn(seed)
    corrected, _ = chosen.update(stack, seasoned(chosen, seed), context)
    equal(corrected, stack)


def test_delay_compensation() -> None:
    """DC-ASGD: with gradients of size one, the gradient of a loss of unit curvature where the policy is now."""
    stack, context = drawn(0, staleness=[0, 1, 4])
    g, moved = np.asarray(stack.gradients), np.asarray(context.newest_params - context.fetched)
    start = correction("delay_compensation").init(jnp.zeros(P))
    corrected, _ = correction("delay_compensation", compensation=0.5).update(stack, start, context)
    np.testing.assert_allclose(corrected.gradients, g + 0.5 * g**2 * moved, rtol=1e-5)
    curved = stack._replace(gradients=jnp.ones((L, P)))
    ones, _ = correction("delay_compensation", compensation=1.0).update(curved, start, context)
    np.testing.assert_allclose(ones.gradients, 1.0 + moved, rtol=1e-5)


def published(chosen: Correction, state: Any) -> Any:
    """The state after the group has ended."""
    return chosen.published(state, jnp.zeros(P), jnp.bool_(True))


def test_adaptive_delay_compensation() -> None:
    """DC-ASGD-a: divided by the root of the running mean square, of the groups before and of the gradient itself."""
    chosen = correction("delay_compensation", compensation=2.0, compensation_memory=0.95)
    state, mean_square = chosen.init(jnp.zeros(P)), np.zeros(P)
    for seed in range(4):
        stack, context = drawn(seed, staleness=[1, 2, 3])
        stack = stack._replace(weights=jnp.array([1.0, 0.0, 0.5]))
        g, moved = np.asarray(stack.gradients, float), np.asarray(context.newest_params - context.fetched, float)
        scale = 2.0 / np.sqrt(0.95 * mean_square + 0.05 * g**2 + 1e-7)
        corrected, state = chosen.update(stack, state, context)
        np.testing.assert_allclose(corrected.gradients, g + scale * g**2 * moved, rtol=1e-4)
        state = published(chosen, state)
        mean_square = 0.95 * mean_square + 0.05 * np.mean(g[[0, 2]] ** 2, axis=0)


@pytest.mark.parametrize("name", NAMES)
@examples
@given(seed=st.integers(0, 99), cut=st.integers(0, L))
def test_a_group_may_be_cut_into_waves(name: str, seed: int, cut: int) -> None:
    """Computed at once or in two waves, one after the other: the same gradients, and the same state after it."""
    chosen = correction(name)
    stack, context = drawn(seed, staleness=[0, 2, 5])
    before = seasoned(chosen, seed)

    def part(tree: Any, own: slice) -> Any:
        return jax.tree.map(lambda x: x[own] if np.shape(x)[:1] == (L,) else x, tree)

    whole, after = chosen.update(stack, before, context)
    state, parts = before, []
    for own in (slice(0, cut), slice(cut, L)):
        one, state = chosen.update(part(stack, own), state, part(context, own))
        parts.append(one)
    ended, other = published(chosen, after), published(chosen, state)
    joined = jax.tree.map(lambda *x: jnp.concatenate(x), *parts)
    for a, b in zip(jax.tree.leaves((whole, ended)), jax.tree.leaves((joined, other)), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_gap_aware() -> None:
    """A gap of so many mean steps divides a gradient by one more, element by element."""
    chosen = correction("gap_aware", gap_memory=0.5)
    state = chosen.init(jnp.zeros(P))
    stack, context = drawn(1, staleness=2)
    state = chosen.published(state, jnp.full(P, -0.1), jnp.bool_(True))
    state = chosen.published(state, jnp.full(P, 7.0), jnp.bool_(False))  # nothing was published
    state = chosen.published(state, jnp.full(P, 0.3), jnp.bool_(True))
    typical = (0.25 * 0.1 + 0.5 * 0.3) / 0.75
    gap = np.abs(np.asarray(context.newest_params - context.fetched))
    corrected, _ = chosen.update(stack, state, context)
    np.testing.assert_allclose(corrected.gradients, np.asarray(stack.gradients) / (1.0 + gap / typical), rtol=1e-5)


def test_kl_gate() -> None:
    stack, context = drawn(2, staleness=[0, 1, 4])
    context = context._replace(kl=jnp.array([9.0, 0.02, 0.04]))
    corrected, _ = correction("kl_gate", trust_kl=0.02).update(stack._replace(weights=jnp.ones(L)), (), context)
    np.testing.assert_allclose(corrected.weights, [1.0, np.exp(-1), np.exp(-2)], rtol=1e-5)


def test_norm_ratio() -> None:
    chosen = correction("norm_ratio", norm_ratio=2.0, norm_memory=0.0)
    stack, context = drawn(3, staleness=[0, 1, 1])
    long = Stack(jnp.array([[30.0], [30.0], [1.0]]) * jnp.eye(1, P), jnp.ones(L))
    first, state = chosen.update(
        stack._replace(gradients=jnp.ones((L, P)), weights=jnp.ones(L)), chosen.init(None), context
    )
    equal(first.gradients, jnp.ones((L, P)))  # nothing to compare with
    corrected, _ = chosen.update(long, published(chosen, state), context)
    np.testing.assert_allclose(corrected.gradients[:, 0], [30.0, 2.0 * np.sqrt(P), 1.0], rtol=1e-6)


def test_effective_sample_size() -> None:
    stack, context = drawn(4)
    stack = stack._replace(weights=jnp.array([1.0, 0.5, 1.0]))
    context = context._replace(metrics=metrics([1.0, 0.25, 0.81]))
    corrected, _ = correction("ess", ess_reference=0.81).update(stack, (), context)
    np.testing.assert_allclose(corrected.weights, [1.0, 0.5 * np.sqrt(0.25 / 0.81), 1.0], rtol=1e-5)


def test_momentum_is_lowered_by_the_staleness_that_there_is() -> None:
    chosen = correction("less_momentum", momentum_memory=0.0)
    _, context = drawn(0, staleness=[8, 8, 1])
    stack = Stack(jnp.ones((L, P)), jnp.array([1.0, 0.2, 0.0]))
    _, state = chosen.update(stack, chosen.init(jnp.zeros(P)), context)
    lowered = chosen.numbers(tiny_hyper(), published(chosen, state))
    assert float(lowered.adam_b1) == pytest.approx(0.5, abs=1e-5) and lowered.adam_b2 == tiny_hyper().adam_b2


@pytest.mark.parametrize("mode", ["factored", "sequential", "fractional"])
def test_bias_correction_goes_by_the_momentum_of_every_step(mode: str) -> None:
    """In the engine's aggregator, while staleness comes and goes: Adam in float64, with 1 - prod_k beta_1(k)."""
    config = tiny("system.corrections=[less_momentum]", "system.correction_options.less_momentum.momentum_memory=0.5")
    config = config.replace({"system.aggregation": mode})
    spec, hyper = ProgramSpec.of(config), Hyper.of(config)
    chosen = spec.corrections[0].bound(hyper.corrections[0])
    params = jnp.zeros(P)
    state = engine_aggregator(spec, None, None, hyper).init(params)
    mu, nu, product, count, momenta = np.zeros(P), np.zeros(P), 1.0, 0, []
    for seed, stale in enumerate([0, 0, 3, 8, 20, 30, 1, 0, 0, 2]):
        stack, context = drawn(seed, staleness=stale)
        numbers = chosen.numbers(hyper, state.corrections[0])
        b1, b2, eps = (float(x) for x in (numbers.adam_b1, numbers.adam_b2, numbers.adam_eps))
        updates, state = engine_aggregator(spec, None, None, numbers).update(
            1e-3 * stack.gradients[:1], state, params, weights=jnp.ones(1), size=jnp.int32(1),
            context=context._replace(staleness=context.staleness[:1]),
        )  # fmt: skip
        g = 1e-3 * np.asarray(stack.gradients[0], float)
        momenta.append(b1)
        mu, nu, product, count = b1 * mu + (1 - b1) * g, b2 * nu + (1 - b2) * g**2, b1 * product, count + 1
        step = mu / (1 - product) / (np.sqrt(nu / (1 - b2**count)) + eps)
        np.testing.assert_allclose(updates, -float(hyper.learning_rate) * step, rtol=1e-3, atol=1e-9)
    assert min(momenta) < 0.2 and max(momenta) > 0.89


@pytest.mark.parametrize("b1", [0.0, 0.9, 0.999])
def test_one_momentum_is_adams_to_the_bit(b1: float) -> None:
    adam, params = optax.adam(1e-2, b1=b1), jnp.zeros(P)
    plain, varying = jax.jit(adam.update), jax.jit(varying_momentum(adam, b1).update)
    one, other = adam.init(params), varying_momentum(adam, b1).init(params)
    for seed in range(50):
        gradient = drawn(seed)[0].gradients[0]
        first, one = plain(gradient, one, params)
        second, other = varying(gradient, other, params)
        equal(first, second)


def tiny_hyper() -> Any:
    return Hyper.of(load_config([]))


def test_they_combine_in_order() -> None:
    """One after the other, each with its own state; what one makes infinite is thrown away and counted."""
    chosen = [correction("delay_compensation", compensation=0.5), correction("norm_ratio", norm_ratio=1.0)]
    aggregator = staleness_weighted(optax.sgd(1.0), corrections=chosen)
    params = jnp.zeros(P)
    state = aggregator.init(params)
    stack, context = drawn(5, staleness=[1, 2, 3])
    stack, size = stack._replace(weights=jnp.ones(L)), jnp.int32(L)
    states = [one.init(params) for one in chosen]
    for _ in range(2):
        by_hand = stack
        for place, one in enumerate(chosen):
            by_hand, states[place] = one.update(by_hand, states[place], context)
        updates, state = aggregator.update(
            stack.gradients, state, params, weights=stack.weights, size=size, context=context
        )
        np.testing.assert_allclose(updates, -jnp.mean(by_hand.gradients, axis=0), rtol=1e-5)
        states = [published(one, own) for one, own in zip(chosen, states, strict=True)]
    assert int(state.rejected) == 0
    far = context._replace(fetched=context.fetched.at[1].set(jnp.inf))
    _, state = aggregator.update(stack.gradients, state, params, weights=stack.weights, size=size, context=far)
    assert int(state.rejected) == 1


FRESH = ["system.rule=central", "system.learners=1"]


@pytest.mark.parametrize("names", [*([name] for name in NAMES if name != "ess"), ["kl_gate", "delay_compensation"]])
def test_without_staleness_a_run_is_the_same(names: list[str]) -> None:
    """One learner that waits for every update: the parameters are those without any correction, to the bit."""
    plain, corrected = (Trainer(tiny(*FRESH, f"system.corrections=[{','.join(own)}]")) for own in ([], names))
    plain.run(4)
    corrected.run(4)
    equal(plain.state.params, corrected.state.params)


@pytest.mark.parametrize("name", NAMES)
def test_a_correction_changes_a_stale_run_and_no_event(name: str) -> None:
    plain, corrected = (Trainer(tiny(f"system.corrections=[{own}]")) for own in ("", name))
    records = [trainer.run(4) for trainer in (plain, corrected)]
    assert not np.array_equal(plain.state.params, corrected.state.params)
    assert np.all(np.isfinite(corrected.state.params))
    for one, other in zip(*records, strict=True):
        assert one["staleness_counts"] == other["staleness_counts"] and one["cost_usd"] == other["cost_usd"]


@pytest.mark.parametrize(
    "spread", [["engine.lanes=3"], ["engine.devices=2"], ["engine.members=together", "num_seeds=2"]]
)
def test_lanes_devices_and_members_agree(spread: list[str]) -> None:
    names = "system.corrections=[delay_compensation,gap_aware,kl_gate,norm_ratio,less_momentum,ess]"
    settings = [
        "system.correction_options.delay_compensation.compensation_memory=0.9",
        "system.rule=softsync",
        "system.rule_options.c=3",
        names,
    ]
    plain, other = (
        Trainer(tiny(*settings, *own)) for own in (["num_seeds=2"] if "num_seeds=2" in spread else [], spread)
    )
    plain.run(2)
    other.run(2)
    np.testing.assert_allclose(plain.state.params, other.state.params, atol=2e-4)


def test_a_number_of_a_correction_compiles_nothing(programs: Any) -> None:
    one, other = (
        Trainer(tiny("system.corrections=[kl_gate]", f"system.correction_options.kl_gate.trust_kl={kappa}"))
        for kappa in (0.1, 0.2)
    )
    assert one.spec == other.spec
    one.run(2)
    compiled = len(one.engine.compiled)
    other.run(2)
    assert one.engine is other.engine and len(other.engine.compiled) == compiled > 0
    assert not np.array_equal(one.state.params, other.state.params)


def test_resumed(tmp_path: Any) -> None:
    """States of corrections are in checkpoints."""
    names = "system.corrections=[gap_aware,less_momentum,delay_compensation]"
    whole = Trainer(tiny(names, "engine.chunk_rounds=3", steps(6)))
    whole.run()
    assert_resumes(whole, tmp_path)


@pytest.mark.parametrize("name", ["ess", "kl_gate"])
def test_one_bad_gradient_ends_nothing(name: str) -> None:
    """Where a minibatch is NaN its metrics are, too: it is counted, and the next group moves the parameters."""
    aggregator = staleness_weighted(optax.sgd(1.0), corrections=[correction(name)])
    params, size = jnp.zeros(P), jnp.int32(L)
    stack, context = drawn(7, staleness=[1, 2, 3])
    ones = jnp.ones(L)
    bad = context._replace(metrics=metrics([jnp.nan, 1.0, 1.0]), kl=jnp.array([jnp.nan, 0.1, 0.1]))
    spoiled = stack.gradients.at[0, 0].set(jnp.nan)
    updates, state = aggregator.update(spoiled, aggregator.init(params), params, weights=ones, size=size, context=bad)
    assert np.all(np.isfinite(updates)) and np.any(np.asarray(updates) != 0) and int(state.rejected) == 1
    updates, state = aggregator.update(stack.gradients, state, params, weights=ones, size=size, context=context)
    assert np.any(np.asarray(updates) != 0) and int(state.rejected) == 1
