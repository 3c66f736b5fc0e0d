"""Invariants and closed forms of the literal system with independent actors (`reference_actors.py`)."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_actors import ActorSystem, Settings
from reference_systems import constant, constant_delays, data_admissions, independent
from settings import delay

from stellaris_jax.config.sections import PlatformConfig


@pytest.mark.parametrize("admission", data_admissions)
@settings(max_examples=50, deadline=None)
@given(data=st.data(), minibatches=st.integers(1, 5), seed=st.integers(0, 99))
def test_invariants(admission: str, data: st.DataObject, minibatches: int, seed: int) -> None:
    case = data.draw(independent(admission=admission))
    check_invariants(case.literal(minibatches, seed))


def check_invariants(system: ActorSystem) -> None:
    config, name, log = system.settings, system.settings.data_admission, system.log
    options, size = system.admission.options, len(system.shards)
    bound = options.get("eta", options.get("bound"))
    gated = name in ("ready_first", "capacity", "window") or options.get("by") == "wait"
    while system.ended < 6:
        system.step()
        most = system.room if name == "evict_stalest" else system.room + size - 1
        assert len(system.waiting) <= most
        assert system.formed - system.completed <= config.batches_in_flight
        if gated:
            outstanding = system.admission.outstanding()
            assert outstanding == len(system.waiting) + sum(shard.attempt is not None for shard in system.shards)
            assert system.formed * size + outstanding <= (bound + system.completed + 1) * size

    fates = Counter(attempt.fate for attempt in log.begins)
    assert fates == Counter(
        used=size * system.formed,
        dropped=len(log.dropped_fragments),
        waiting=len(system.waiting),
        rolling=sum(shard.attempt is not None for shard in system.shards),
        dead=log.actor_failures,
    )
    used = [(fragment, batch.index) for batch in log.batches for fragment in batch.fragments]
    assert len({fragment.name for fragment, _ in used}) == len(used)
    for shard in system.shards:  # every fragment is begun until it does not die
        own = [attempt for attempt in log.begins if attempt.shard == shard.number]
        survivors = [attempt.number for attempt in own if attempt.fate != "dead"]
        assert survivors == [*range(len(survivors))]
        assert all(later.begin >= earlier.end for earlier, later in pairwise(own))

    ages = [index - fragment.batch for fragment, index in used]
    if name in ("newest", "window", "bounded"):
        assert max(ages) <= bound
        assert all(fragment.batch + bound < system.formed for _, fragment in log.dropped_fragments)
    elif name != "evict_stalest":
        assert not log.dropped_fragments
    if name == "fixed":
        assert [fragment.name for fragment, _ in used] == [(a, b) for b in range(system.formed) for a in range(size)]
        lags = [(age, min(options["lag"], index)) for age, (_, index) in zip(ages, used, strict=True)]
        assert all(age <= lag for age, lag in lags)
        if not system.actor_failure:
            assert all(age == lag for age, lag in lags)
    if name == "in_order":
        for fragment, index in used:
            second = log.batches[index].second
            missing = [a for a in log.begins if a.order < fragment.order and (a.end is None or a.end > second)]
            assert len(missing) <= options["window"]
        if options["window"] == 0:
            orders = [order for batch in log.batches for order in sorted(one.order for one in batch.fragments)]
            assert orders == sorted(orders)

    for attempt in log.begins:
        assert attempt.versions == sorted(attempt.versions)
        assert all(version % config.publish_every == 0 for version in attempt.versions)
        assert len(attempt.versions) <= system.segments
        if attempt.fate not in ("dead", "rolling"):
            assert len(attempt.versions) == system.segments
    gradients = Counter(d.fragment for one in log.aggregations for d in one.deliveries)
    gradients.update(lost.fragment for _, lost in log.dropped)
    assert all(gradients[batch] == system.minibatches for batch in range(system.completed))


# Queueing theory ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("admission", ["fifo", "newest", "capacity", "evict_stalest"])
def test_littles_law_of_the_data_queue(admission: str) -> None:
    """The mean number of waiting fragments over time is their throughput times their mean wait."""
    delays = constant_delays([1.0])
    delays.actor, delays.learner = delay("exponential", seconds=1.0), delay("exponential", seconds=0.3)
    config = Settings(actor_shards=3, learners=2, data_queue=5, data_admission=admission)
    system = ActorSystem(config, PlatformConfig(), delays, 2, 0, total_actors=3)
    area, before, length = Fraction(0), Fraction(0), 0
    while system.ended < 600:
        system.step()
        area += length * (system.time.now - before)
        before, length = system.time.now, len(system.waiting)
    gone = [fragment for fragment in system.log.begins if fragment.left is not None]
    throughput = len(gone) / before
    mean_wait = sum((fragment.left - fragment.end for fragment in gone), Fraction(0)) / len(gone)
    assert len(gone) >= 1800 and area / before > 0.5
    assert float(area / before) == pytest.approx(float(throughput * mean_wait), rel=0.01)


# Data lag for constant durations, rule async, no aggregation time: versions published between a fragment's begin and
# the aggregation of a gradient of its batch. A shards take D seconds, and n learners take L seconds for each of the G
# gradients of a batch.
#
# Slow actors, ceil(G / n) L < D: shards never wait. Batch b is formed at (b + 1) D, when the fragments b of all shards
# end. Batches up to b - 2 are completed when fragments b begin, at b D: they see version G (b - 1), for b >= 1. The
# i-th gradient of batch b meets clock G b + i. So its data lag is G + i: (3 G - 1) / 2 on average, 2 G - 1 at most.
# With publish_every m and publish_lag p, fragments see max(0, G (b - 1) - p) // m * m.
#
# Slow learners, D < R = G L / n, n divides G, fifo, F = 1: batch b is formed when batch b - 1 is completed, every R
# seconds. Shards go on while fewer than Q fragments wait. When the Q-th joins them, the other A - 1 shards roll, so
# that Q + A - 1 wait in the end. When A of them leave, Q - 1 remain, and all A shards begin at once, at clock G b.
# Their fragments join at places Q - 1, ..., Q + A - 2. The one at place q leaves with batch b + 1 + floor(q / A). So
# the data lag of its i-th gradient is G (1 + floor(q / A)) + i. The mean of floor(q / A) over A successive q is
# (Q - 1) / A (Hermite's identity). On average, data lag is G (Q + A - 1) / A + (G - 1) / 2, which is Little's law:
# Q + A - 1 fragments wait, and A of them leave in every G versions.
# One learner needs no F = 1 if D < (G - 1) L: no shard rolls any more when the last gradient of a batch is begun, so
# that the next batch is formed only when that gradient arrives.


def data_lags(system: ActorSystem, batches: range) -> list[int]:
    """Data lag of every gradient of some batches and every fragment of them."""
    return [
        one.clock - fragment.versions[0]
        for one in system.log.aggregations
        for delivery in one.deliveries
        if delivery.fragment in batches
        for fragment in system.log.batches[delivery.fragment].fragments
    ]


@pytest.mark.parametrize(("shards", "learners", "gradients"), [(1, 1, 1), (2, 1, 3), (3, 2, 5), (4, 8, 8), (2, 3, 6)])
@pytest.mark.parametrize(("every", "lag"), [(1, 0), (4, 0), (1, 2), (3, 1)])
def test_data_lag_of_slow_actors(shards: int, learners: int, gradients: int, every: int, lag: int) -> None:
    seconds = -(-gradients // learners) * 1.0 + 0.5
    system = constant([seconds] * shards, 1.0, gradients, learners=learners, publish_every=every, publish_lag=lag)
    system.run(12)
    assert [batch.second for batch in system.log.batches[:12]] == [(b + 1) * Fraction(seconds) for b in range(12)]
    for b in range(1, 12):
        seen = max(0, gradients * (b - 1) - lag) // every * every
        expected = [gradients * b + i - seen for i in range(gradients) for _ in range(shards)]
        assert data_lags(system, range(b, b + 1)) == expected
    if (every, lag) == (1, 0):
        lags = data_lags(system, range(1, 12))
        assert np.mean(lags) == (3 * gradients - 1) / 2 and max(lags) == 2 * gradients - 1


@pytest.mark.parametrize(("learners", "gradients", "flight"), [(1, 2, 1), (2, 4, 1), (4, 4, 1), (1, 4, 2), (1, 3, 3)])
@pytest.mark.parametrize(("shards", "queue"), [(1, 1), (1, 3), (2, 2), (2, 5), (3, 4), (3, 9)])
def test_data_lag_of_slow_learners(learners: int, gradients: int, flight: int, shards: int, queue: int) -> None:
    system = constant([0.1] * shards, 1.0, gradients, learners=learners, data_queue=queue, batches_in_flight=flight)
    warm, last = 2 * queue + 3, 2 * queue + 3 + 4 * shards
    system.run(last)
    period = Fraction(gradients, learners)
    seconds = [batch.second for batch in system.log.batches[warm:last]]
    assert {later - earlier for earlier, later in pairwise(seconds)} == {period}
    places = range(queue - 1, queue + shards - 1)
    expected = Counter(gradients * (1 + q // shards) + i for q in places for i in range(gradients))
    lags = data_lags(system, range(warm, last))
    assert Counter(lags) == Counter({lag: count * len(lags) // expected.total() for lag, count in expected.items()})
    assert np.mean(lags) == pytest.approx(gradients * (queue + shards - 1) / shards + (gradients - 1) / 2)
