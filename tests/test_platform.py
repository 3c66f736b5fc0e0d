"""Delays, the platform and the bill: what takes how long, and what it costs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import LEARNER, Scenario, advance, examples, scenarios, simulate, used
from settings import delay

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.compose import choices
from stellaris_jax.config.sections import DelayConfig, PlatformConfig, PricesConfig
from stellaris_jax.config.system import SystemConfig
from stellaris_jax.execute.calibrate import calibrate, write
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.timeline import Round, Timeline, Usage
from stellaris_jax.timeline.billing import HOUR, bill, common_bill
from stellaris_jax.timeline.delays import ENTITIES, Chance, Stream, delay_of
from stellaris_jax.timeline.platform import Placement
from stellaris_jax.timeline.sharing import PARAMETER_FUNCTION, Computation, Contention
from stellaris_jax.timeline.ticks import SECOND

# Delays and platform ----------------------------------------------------------------------------------------------


def draws(model: DelayConfig | None, seed: int, entity: str, count: int) -> list[float]:
    stream = Stream(Chance() if model is None else delay_of(model), seed, entity)
    return [next(stream) for _ in range(count)]


def test_a_stream_is_a_function_of_seed_entity_and_position() -> None:
    rows = {(seed, entity): draws(LEARNER, seed, entity, 2500) for seed in (0, 1) for entity in ENTITIES}
    assert draws(LEARNER, 1, "actor", 2500) == rows[1, "actor"]
    everything = [value for row in rows.values() for value in row]
    assert len(set(everything)) == len(everything)
    # Continued from any position, across the blocks it is drawn in, the stream is the same.
    for position in (0, 1, 1023, 1024, 2100):
        stream = Stream(delay_of(LEARNER), 0, "learner")
        stream.restore(json.loads(json.dumps(position)))
        assert [next(stream) for _ in range(300)] == rows[0, "learner"][position : position + 300]
        assert stream.state() == position + 300


def test_lognormal_has_the_median_and_deviation_asked_for() -> None:
    logs = np.log(draws(delay("lognormal", 0.3, sigma=0.5), 0, "learner", 20_000))
    assert np.median(logs) == pytest.approx(np.log(0.3), abs=0.02)
    assert np.std(logs) == pytest.approx(0.5, rel=0.02)


def test_pareto_has_the_minimum_and_tail_asked_for() -> None:
    values = np.array(draws(delay("pareto", 0.3, alpha=2.0), 0, "learner", 20_000))
    assert values.min() >= 0.3 and values.min() == pytest.approx(0.3, rel=1e-3)
    for factor in (1.5, 2.0, 4.0):
        assert np.mean(values > 0.3 * factor) == pytest.approx(factor**-2.0, rel=0.1)


@pytest.mark.filterwarnings("ignore:overflow")
def test_durations_are_finite() -> None:
    stream = Stream(delay_of(delay("lognormal", 1e300, sigma=20.0)), 0, "learner")
    with pytest.raises(RunError, match=r"Lognormal, a delay model, has drawn inf .* must be finite"):
        next(stream)


def test_constant_and_measured_delays() -> None:
    assert set(draws(delay("constant", 0.7), 0, "learner", 5)) == {0.7}
    table = delay("measured", table=[0.1, 0.2, 0.3])
    assert draws(table, 0, "learner", 7) == [0.1, 0.2, 0.3, 0.1, 0.2, 0.3, 0.1]


def test_failures_strike_at_their_rate_and_are_retried() -> None:
    timeline = simulate("async", gradients=500, failure=0.25)
    records = advance(timeline, 4)
    assert timeline.usage.failures / timeline.usage.invocations == pytest.approx(0.25, abs=0.03)
    assert len({(g.fragment, g.minibatch) for g in used(records)}) == 4 * 500
    # A failed invocation dies at a uniform fraction of its duration, and that time is recorded.
    busy = timeline.usage.learner_busy / 2000
    assert timeline.usage.learner_failed / timeline.usage.failures == pytest.approx(0.5 * busy, rel=0.15)


@pytest.mark.parametrize(
    ("prewarm", "keep_alive", "cold"),
    [
        (True, 600.0, 0),
        (False, 600.0, 4),  # the first invocation of each learner
        (True, 5.0, 12),  # containers cool while actors work for 10 s, every round
        (True, 10.0, 6),  # of later rounds, only the learner that finished last is just in time
    ],
)
def test_containers_start_warm_or_cold(prewarm: bool, keep_alive: float, cold: int) -> None:
    """3 rounds of two groups of 4 learners; actors work 10 s, learners 1, 2, 3 and 4 s, so they idle 3 s at most."""
    platform = PlatformConfig(
        actors=1, prewarm=prewarm, keep_alive=keep_alive, cold_start=1.5, warm_start=0.25, actor_cold_start=0.0
    )
    timeline = simulate(
        "allreduce",
        learners=4,
        gradients=8,
        learner=delay("measured", table=[1.0, 2.0, 3.0, 4.0]),
        actor=delay("constant", 10.0),
        platform=platform,
    )
    advance(timeline, 3)
    expected = cold * 1.5 + (3 * 8 - cold) * 0.25
    assert timeline.usage.learner_startup == pytest.approx(expected)
    # Start-up is no busy time, but it takes time.
    assert timeline.usage.learner_busy == pytest.approx(3 * 2 * (1 + 2 + 3 + 4))
    if keep_alive == 600.0:
        first = 1.5 if not prewarm else 0.25
        assert timeline.now == pytest.approx(3 * (10 + 2 * (0.25 + 4)) + first - 0.25)


@pytest.mark.parametrize("kind", ["constant", "lognormal", "measured"])
def test_taking_many_durations_is_taking_them_one_by_one(kind: str) -> None:
    model = delay(kind, **({"table": [1.0, 2.0, 3.0]} if kind == "measured" else {}))
    one, many = Stream(delay_of(model), 3, "actor"), Stream(delay_of(model), 3, "actor")
    for size in (1, 700, 300, 23, 1, 2000, 5):
        assert many.take(size) == [next(one) for _ in range(size)]
        assert many.state() == one.state()


def test_functions_that_share_a_gpu_slow_each_other_down() -> None:
    """Four learners on two GPUs start together, two on each."""
    platform = PlatformConfig(actors=1, gpus=2, contention=0.5)
    learner = delay("constant", 2.0)
    timeline = simulate("allreduce", learners=4, gradients=4, learner=learner, platform=platform)
    (record,) = advance(timeline, 1)
    seconds = {g.learner: g.end - g.start for g in used([record])}
    assert seconds == pytest.approx(dict.fromkeys(range(4), 3.0))


def test_who_is_left_alone_computes_as_fast_as_alone() -> None:
    """Two seconds of work beside four: the one ends after three seconds, when the other has two of its four left."""
    company = Contention(Placement(PlatformConfig(gpus=1, contention=0.5), 2), interference=1.0)
    company.under_way = {0: Computation(0, 2 * SECOND, order=0), 1: Computation(0, 4 * SECOND, order=1)}
    assert [work.paced(0, slowdown) for _, work, slowdown in company.changed()] == [3 * SECOND, 6 * SECOND]
    assert company.changed() == []
    del company.under_way[0]
    ((one, work, slowdown),) = company.changed()
    assert (one, work.paced(3 * SECOND, slowdown)) == (1, 2 * SECOND)
    # A second later the parameter function computes, too: all of the rest takes twice as long.
    company.under_way[PARAMETER_FUNCTION] = Computation(4 * SECOND, SECOND // 2, order=2)
    assert [work.paced(4 * SECOND, slowdown) for _, work, slowdown in company.changed()] == [SECOND, 2 * SECOND]


def test_a_learner_that_starts_up_slows_nobody_down() -> None:
    """Contention 1 on one GPU. Learner 0 is warm and computes from 3 s on; learner 1 starts up from 3 to 13 s."""
    platform = PlatformConfig(actors=1, gpus=1, contention=1.0, keep_alive=2.0, cold_start=10.0)
    one = delay("constant", 1.0)
    timeline = simulate("async", learners=2, gradients=1, learner=one, actor=one, platform=platform)
    timeline.next_round()
    record = timeline.next_round(gradients=2)
    assert {g.learner: (g.start, g.end) for g in used([record])} == {0: (3.0, 4.0), 1: (13.0, 14.0)}


def test_a_learner_that_is_passed_data_slows_nobody_down() -> None:
    """Contention 1 on one GPU, half a second to pass a policy or a gradient; data at 1 s.

    Both compute from 1.5 s on, at half speed, until learner 0 has done its second at 3.5 s. It delivers at 4.0 s, and
    computes again from 4.5 s on. By then learner 1 has one of its three seconds left, which takes two.
    """
    platform = PlatformConfig(actors=1, gpus=1, contention=1.0, shared_memory=0.5)
    table = delay("measured", table=[1.0, 3.0, 2.0])
    timeline = simulate("async", learners=2, gradients=3, learner=table, actor=delay(), platform=platform)
    (record,) = advance(timeline, 1)
    assert [(g.learner, g.start, g.end) for g in used([record])] == [(0, 1.0, 4.0), (1, 1.0, 7.0), (0, 4.0, 8.0)]
    assert timeline.usage.learner_busy == 3.0 + 6.0 + 4.0


def test_the_parameter_function_is_slowed_down_by_learners_that_compute() -> None:
    """Interference 1. A learner computes from 1.5 to 2.5 s, and delivers at 3.0 s; while the parameter function
    aggregates, the learner is passed a policy until 3.5 s, and then both compute at half speed until 4.5 s."""
    platform = PlatformConfig(actors=1, gpus=1, interference=1.0, shared_memory=0.5)
    timeline = simulate(
        "async", learners=1, gradients=2, learner=delay(), actor=delay(), aggregate=delay(), platform=platform
    )
    (record,) = advance(timeline, 1)
    assert [(group.second, group.published) for group in record.groups] == [(3.0, 4.5), (5.5, 6.5)]
    assert timeline.usage.aggregate_busy == 2.5


def test_contention_and_interference_of_0_are_none() -> None:
    """A platform that shares in principle, but slows nothing down, gives the same rounds and the same usage."""

    def rounds(contention: float) -> list[Round]:
        platform = PlatformConfig(
            actors=2, gpus=2, gpus_per_vm=1, rpc=0.2, shared_memory=0.01, contention=contention, keep_alive=0.5
        )
        return advance(simulate("stellaris", failure=0.2, aggregate=LEARNER, platform=platform), 6)

    assert rounds(0.0) == rounds(1e-12)


def test_data_takes_its_way() -> None:
    """Shared memory on the first VM, RPC to the second, the cache for actors; each is passed there and back."""
    platform = PlatformConfig(actors=1, gpus=2, gpus_per_vm=1, shared_memory=0.125, rpc=0.5, cache=1.0)
    durations = {"learner": delay("constant", 2.0), "actor": delay("constant", 3.0)}
    timeline = simulate("allreduce", learners=2, gradients=2, platform=platform, **durations)
    (record,) = advance(timeline, 1)
    assert {g.learner: (g.start, g.end) for g in used([record])} == {0: (5.0, 7.25), 1: (5.0, 8.0)}
    assert timeline.usage.actor_busy == 5.0


@pytest.mark.parametrize(("prewarm", "keep_alive", "starts"), [(True, 600.0, 0), (False, 600.0, 1), (False, 1.0, 3)])
def test_actors_start_warm_or_cold(prewarm: bool, keep_alive: float, starts: int) -> None:
    platform = PlatformConfig(actors=5, prewarm=prewarm, keep_alive=keep_alive, actor_cold_start=38.0, cold_start=0.0)
    timeline = simulate("central", gradients=4, learner=delay("constant", 1.0), platform=platform)
    advance(timeline, 3)
    assert timeline.usage.actor_startup == pytest.approx(starts * 5 * 38.0)


@pytest.mark.parametrize("rule", ["allreduce", "stellaris"])
def test_more_learners_are_used_less(rule: str) -> None:
    """SC'24, Fig. 3a: more learner functions are faster, and each of them is busy for a smaller share of the time."""
    learning, utilisation = [], []
    for learners in (2, 4, 6, 8):
        timeline = simulate(rule, learners=learners, gradients=24, learner=delay("lognormal", 1.0, sigma=0.5))
        advance(timeline, 10)
        learning.append(timeline.usage.seconds)
        utilisation.append(timeline.usage.learner_busy / (learners * timeline.usage.seconds))
    assert learning == sorted(learning, reverse=True)
    assert utilisation == sorted(utilisation, reverse=True)


# The bill -----------------------------------------------------------------------------------------------------------

dollars = st.floats(0.01, 50.0)
prices = st.builds(
    PricesConfig,
    learner_vm=dollars,
    learner_vms=st.integers(2, 4),
    learner_vm_slots=st.integers(4, 8),
    actor_vm=dollars,
    actor_vm_slots=st.integers(128, 256),
    actor_gb=st.sampled_from([0.0, 1.0, 2.5]),
    gb_second=st.floats(0.0, 1e-3),
    reserved_gb_second=st.floats(0.0, 1e-3),
)
BILLINGS = [(learner, actor) for learner in ("serverless", "serverful") for actor in ("serverless", "serverful")]


@examples
@given(scenario=scenarios(), prices=prices, billing=st.sampled_from(BILLINGS))
def test_items_add_up(scenario: Scenario, prices: PricesConfig, billing: tuple[str, str]) -> None:
    """For any run: no item is negative, they sum to the total, and a cluster costs its wall-clock to the cent."""
    timeline = scenario.build()
    records = advance(timeline, 3)
    system = replace(timeline.system, learner_billing=billing[0], actor_billing=billing[1])
    usage, actors = timeline.usage, timeline.actors
    result = bill(system, prices, usage, actors)
    # What learners are paid for is the gradients they have delivered, by when each began and ended.
    dropped = [gradient for record in records for gradient in record.dropped]
    delivered = [*used(records), *dropped, *timeline.coordinator.queue]
    slot_seconds = sum(gradient.end - gradient.start for gradient in delivered)
    assert result.learner_busy == pytest.approx(
        prices.learner_vm / prices.learner_vm_slots / HOUR * slot_seconds, rel=1e-9, abs=1e-12
    )
    assert result.total == pytest.approx(sum(result.items.values()))
    assert min(result.items.values()) >= -1e-12
    parts: dict[str, Any] = {
        who: sum(value for item, value in result.items.items() if item.startswith(who)) for who in ("learner", "actor")
    }
    clusters = {"learner": prices.learner_vm * prices.learner_vms, "actor": prices.actor_vm * prices.actor_vms}
    for who, rule in zip(("learner", "actor"), billing, strict=True):
        if rule == "serverful":
            assert parts[who] == pytest.approx(clusters[who] / HOUR * usage.seconds, rel=1e-9, abs=1e-12)
        else:
            assert result.items[f"{who}_idle"] == 0.0  # serverless never pays for waiting
    common = common_bill(system, prices, usage, actors)
    assert common.total == pytest.approx(sum(clusters.values()) / HOUR * usage.seconds)
    assert common == common_bill(timeline.system, prices, usage, actors)


def test_a_bill_by_hand() -> None:
    """Slots of the paper's regular testbed: $0.765 an hour for a learner, $0.03825 for an actor; Lambda by memory."""
    learner, actor = delay("constant", 3.0), delay("constant", 6.0)
    platform = PlatformConfig(actors=128, prewarm=False, cold_start=1.5, actor_cold_start=2.0)
    timeline = simulate("allreduce", gradients=8, learner=learner, actor=actor, platform=platform)
    advance(timeline, 2)
    serverless = SystemConfig(learner_billing="serverless", actor_billing="serverless")
    items = bill(serverless, PricesConfig(), timeline.usage, 128).items
    # Slot-seconds: 48 and 12 of learners, 1536 and 256 of actors.
    expected = {"learner_busy": 0.0102, "learner_startup": 0.00255, "actor_busy": 0.01632, "actor_startup": 0.00272}
    assert {item: value for item, value in items.items() if value} == pytest.approx(expected)
    lambdas = PricesConfig(actor_gb=1.0, gb_second=0.0000097222, reserved_gb_second=0.0000041667)
    items = bill(serverless, lambdas, timeline.usage, 64).items
    assert items["actor_busy"] == pytest.approx(0.0149333, rel=1e-5)
    assert timeline.usage.seconds == 21.5, "a cold start, a warm round, each 6 s of actors and 3 s of learners"
    assert items["actor_reserved"] == pytest.approx(0.00573338, rel=1e-5)


def test_a_failed_invocation_is_billed_and_retried() -> None:
    timeline = simulate("stellaris", failure=0.3, gradients=64)
    records = advance(timeline, 4)
    assert timeline.usage.failures > 20
    pointers = [(g.fragment, g.minibatch) for g in used(records)]
    assert len(pointers) == len(set(pointers)) == 4 * 64  # none is lost, none used twice
    items = bill(SystemConfig(), PricesConfig(), timeline.usage, 2).items
    assert items["learner_failed"] == pytest.approx(0.765 / HOUR * timeline.usage.learner_failed)
    assert items["learner_failed"] > 0.0


# The systems of the comparison ----------------------------------------------------------------------------------------

LANGUAGE = {"verl_async", "pipeline_rl", "prime_rl", "slime"}
SYNCHRONOUS = {"rllib", "msrl", "srl", "par_rl", "stellaris_no_async", "allreduce", "areal", "one_step", "pipeline"}
SYNCHRONOUS |= LANGUAGE | {"sync"}
CENTRAL = {"seed_rl", "impact", "minionsrl", "central", "nitro", "sample_factory", "distributed_dqn"}
INDEPENDENT = {"areal", "one_step", "pipeline", "sample_factory", "seed_rl", "impact", "stellaris_async_actors"}
INDEPENDENT |= LANGUAGE | {"gorila", "distributed_dqn"}
ABLATIONS = {f"stellaris_no_{what}" for what in ("async", "truncation", "weighting")}
SERVERLESS = {"parallax", "stellaris", "stellaris_async_actors", "minionsrl", "artifact"} | ABLATIONS


@pytest.mark.parametrize("name", choices("system"))
def test_every_system_is_the_architecture_its_header_says(name: str) -> None:
    config = load_config([f"system={name}", "delays=hopper"])
    timeline = Timeline.of(config, seed=0)
    records = advance(timeline, 4)
    staleness = {gradient.staleness for gradient in used(records)}
    groups = {len(group.gradients) for record in records for group in record.groups}
    assert (staleness == {0}) == (name in SYNCHRONOUS | CENTRAL)
    if name in SYNCHRONOUS | CENTRAL:
        assert groups == {config.system.learners}
    lag = {record.arrived - record.behaviour_version for record in records[1:]}
    assert (config.system.actors == "independent") == (name in INDEPENDENT)
    assert (lag == {0}) == (name not in INDEPENDENT | {"srl"})  # whose actors run ahead
    items = bill(config.system, config.prices, timeline.usage, config.platform.actors).items
    assert (items["learner_idle"] == 0.0) == (name in SERVERLESS)
    assert (items["actor_idle"] == 0.0) == (name in ("minionsrl", "nitro"))


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("name", choices("system"))
def test_every_system_trains(name: str) -> None:
    small = ["env=diagnostic/observation_action_reward", "env.num_envs=16", "algorithm.rollout_length=8"]
    small += ["network.hidden=[8]", "engine.chunk_rounds=2"]
    trainer = Trainer(load_config([f"system={name}", *small, "total_steps=256"]))
    before = np.asarray(trainer.state.params)
    records = trainer.run()
    assert len(records) == 2 and not np.array_equal(before, trainer.state.params)
    assert trainer.summary(None)["nonfinite_gradients"] == 0


@pytest.mark.parametrize("env", ["diagnostic/truncation", "envpool/CartPole-v1"])
def test_calibration_writes_a_delay_model_that_can_be_chosen(env: str, tmp_path: Path) -> None:
    small = [f"env={env}", "env.num_envs=8", "algorithm.rollout_length=16", "network.hidden=[8]"]
    scaling = "nitro" if env.startswith("envpool") else "fixed"
    table = calibrate(load_config([*small, "engine.chunk_rounds=1", f"scaling={scaling}"]), repeats=3)
    names = ("learner", "actor", "aggregate", "scaling")[: 4 if scaling == "nitro" else 3]
    assert {name: len(values) for name, values in table.items()} == dict.fromkeys(names, 3)
    assert all(0.0 < value < 60.0 for values in table.values() for value in values)
    write(table, tmp_path / "delays" / "mine.yaml", "two\nlines")
    delays = load_config(["delays=mine"], config_dir=tmp_path).delays
    assert (delays.name, delays.learner.kind) == ("mine", "measured")
    assert delays.actor.options["table"] == pytest.approx(table["actor"], rel=0.01)


@pytest.mark.parametrize("job", ["algorithm=dqn env=diagnostic/truncation", "algorithm=sac env=gymnax/pendulum"])
def test_learners_with_target_networks_are_calibrated(job: str) -> None:
    small = ["env.num_envs=8", "algorithm.rollout_length=8", "network.hidden=[8]", "engine.chunk_rounds=1"]
    stored = ["algorithm.options.buffer_size=256", "algorithm.options.learning_starts=64"]
    table = calibrate(load_config([*job.split(), *small, *stored]), repeats=2)
    assert all(0.0 < value < 60.0 for values in table.values() for value in values)


def test_rollouts_that_died_are_paid_for() -> None:
    alive = Usage(seconds=100.0, actor_busy=50.0)
    used = (alive, replace(alive, actor_failed=10.0))
    serverless = [bill(SystemConfig(actor_billing="serverless"), PricesConfig(), usage, 4) for usage in used]
    assert serverless[1].actor_busy == pytest.approx(1.2 * serverless[0].actor_busy)
    clusters = [bill(SystemConfig(), PricesConfig(), usage, 4).total for usage in used]
    assert clusters[1] == pytest.approx(clusters[0])
