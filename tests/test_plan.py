"""The plan: the timeline's gradients laid out as waves, and the order of the data loader."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scenarios import (
    Scenario,
    examples,
    scenarios,
)

from stellaris_jax.timeline import MinibatchLayout, PlanShape, build_plan, minibatch_order


@examples
@given(
    options=st.lists(scenarios(rules=("async", "softsync", "allreduce", "stellaris")), min_size=1, max_size=3),
    width=st.sampled_from([1, 3, 4]),
    executed=st.integers(1, 3),
)
def test_the_plan_is_the_records(options: list[Scenario], width: int, executed: int) -> None:
    """Reading the waves back gives every gradient of every group once, in order, and nothing else."""
    shared = options[0].options
    scenarios_ = [
        Scenario(s.rule, s.options | {k: shared[k] for k in ("gradients", "versions", "actors")}, 3) for s in options
    ]
    for scenario in scenarios_:
        scenario.options["learners"] = min(scenario.options["learners"], shared["gradients"])
        scenario.options["c"] = min(scenario.options["c"], scenario.options["learners"])
    timelines = [scenario.build() for scenario in scenarios_]
    seeds, gradients, buffers = len(timelines), shared["gradients"], timelines[0].depth
    ring = shared["versions"] + 2  # the target network of the oldest version may be two older
    shape = PlanShape(3, seeds, width, 7, gradients, 2, shared["versions"], buffers, target_interval=3)
    for timeline in timelines:
        timeline.next_round()  # chunks start anywhere
    records = [[timeline.next_round() for timeline in timelines] for _ in range(executed)]
    orders = [
        [minibatch_order(s, r, MinibatchLayout(1, gradients, 2, gradients)) for s in range(seeds)]
        for r in range(executed)
    ]
    plan = build_plan(shape, records, orders, [1.0, 0.5, 0.25][:executed])

    assert plan.weights.shape == (shape.capacity, seeds, width)
    begin = 0
    for r, row in enumerate(records):
        assert plan.bounds[r, 0] == begin
        begin = plan.bounds[r, 1]
        waves = [sum(math.ceil(len(group.gradients) / width) for group in record.groups) for record in row]
        assert begin - plan.bounds[r, 0] == max(waves)
        for s, record in enumerate(row):
            wave = plan.bounds[r, 0]
            for group in record.groups:
                left = list(zip(group.gradients, group.weights, strict=True))
                while left:
                    part, left = left[:width], left[width:]
                    assert plan.sizes[wave, s] == (0 if left else len(group.gradients))
                    for lane, (gradient, weight) in enumerate(part):
                        assert plan.weights[wave, s, lane] == np.float32(weight)
                        one = jax.tree.map(lambda x, at=(wave, s, lane): x[at], plan.invocations)
                        assert (one.buffer, one.minibatch) == (gradient.fragment % buffers, gradient.minibatch)
                        assert one.slot == gradient.version % ring
                        # Targets are versions 0, 3, 6, ...; none is overwritten before the gradient is aggregated.
                        target_version = 3 * (gradient.version // 3)
                        assert one.target_slot == target_version % ring and group.clock - target_version < ring
                        peers = one.peers.slots[: one.peers.number]
                        assert peers.tolist() == [v % ring for v in gradient.peers]
                    assert not np.any(plan.weights[wave, s, len(part) :])
                    wave += 1
            # A seed with fewer waves than another idles to the end of the round.
            assert not np.any(plan.weights[wave:begin, s]) and not np.any(plan.sizes[wave:begin, s])
            assert plan.behaviour[r, s] == record.behaviour_version % ring
            np.testing.assert_array_equal(plan.order[r, s], orders[r][s])
        assert plan.learning_rate[r] == [1.0, 0.5, 0.25][r]
    assert not np.any(plan.weights[begin:]) and not np.any(plan.sizes[begin:])
    assert not np.any(plan.bounds[executed:]) and not np.any(plan.learning_rate[executed:])


def test_the_data_loader_cuts_a_fresh_permutation_per_epoch() -> None:
    cut = MinibatchLayout(epochs=4, minibatches=8, steps=16, envs=4)
    order = minibatch_order(seed=3, fragment=5, layout=cut)
    assert order.shape == (32, 8) and order.dtype == np.int32
    epochs = order.reshape(4, 64)
    np.testing.assert_array_equal(np.sort(epochs, axis=1), np.broadcast_to(np.arange(64), (4, 64)))
    assert len({tuple(epoch) for epoch in epochs}) == 4
    np.testing.assert_array_equal(order, minibatch_order(3, 5, cut))
    others = [minibatch_order(seed, fragment, cut) for seed, fragment in ((2, 5), (3, 4), (5, 3))]
    assert not any(np.array_equal(order, other) for other in others)


def test_each_key_draws_as_a_new_generator() -> None:
    """Independence of what was drawn before, half a word included, and of the thread."""
    layout = MinibatchLayout(3, 4, 8, 6)

    def expected(seed: int, fragment: int) -> np.ndarray:
        generator = np.random.Generator(np.random.Philox(key=(fragment << 64) | (seed << 1) | 1))
        rows = [generator.permuted(np.arange(48)) for _ in range(3)]
        return np.concatenate(rows).reshape(12, 12).astype(np.int32)

    keys = [(0, 0), (2**62, 5), (3, 2**40), (0, 0)]
    with ThreadPoolExecutor(3) as threads:
        several = list(threads.map(lambda key: minibatch_order(*key, layout), keys * 20))
    for key, order in zip(keys * 20, several, strict=True):
        np.testing.assert_array_equal(order, expected(*key))
