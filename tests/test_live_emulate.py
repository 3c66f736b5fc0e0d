"""Live runs that also wait for the seconds that the simulator draws (`live.emulate`)."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import jax
import live_runs
import pytest
from live_runs import Chaos, config_of, functions_of, params, replayed

from stellaris_jax.config.tree import Config
from stellaris_jax.execute.job import as_executed
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.live.emulation import Wait
from stellaris_jax.live.pool import ACTOR, LEARNER, Call
from stellaris_jax.live.rolls import Share
from stellaris_jax.live.threads import Threads
from stellaris_jax.timeline import Timeline, trace
from stellaris_jax.timeline.records import Segment
from stellaris_jax.timeline.ticks import SECOND
from stellaris_jax.timeline.trace import RoundTrace

DRAWN = (
    "live.emulate=true",
    "delays.learner={kind: pareto, seconds: 0.002, options: {alpha: 3.0}}",
    "delays.actor={kind: pareto, seconds: 0.004, options: {alpha: 3.0}}",
)
FREE = ("system.actors=independent", "system.actor_shards=2", "live.actors=0", "system.sync_steps=4")
HOST = ("env=gymnasium/CartPole-v1", "system=stellaris", "env.num_envs=4")
ACTORS = {
    "barrier": (),
    "pipelined": ("system.actors=pipelined",),
    "scaled": ("scaling=nitro", "scaling.maximum=4", "scaling.minimum=1"),
    "independent": FREE,
    "host environments": HOST,
    "independent, host environments": (*FREE, *HOST),
}


class Submitted(Threads):
    """Threads whose invocations are listed."""

    def __init__(self, config: Config, actors: int):
        super().__init__(config, actors)
        self.calls: list[tuple[Call, tuple[Any, ...]]] = []

    def submit(self, call: Call, *arguments: Any) -> None:
        self.calls.append((call, arguments))
        super().submit(call, *arguments)


def waits(pool: Any, kind: str) -> list[tuple[Any, float]]:
    """First argument and emulated seconds of all invocations of a kind that wait."""
    found = []
    for call, arguments in pool.calls:
        if call.kind == kind and isinstance(arguments[-1], Wait):
            assert call.grace == arguments[-1].seconds, "the timeout is longer by what is emulated"
            found.append((arguments[0], arguments[-1].seconds))
    return found


def drawn(config: Config, entity: str, count: int) -> list[float]:
    """The first seconds of the simulator's stream."""
    streams = Timeline.of(as_executed(config), config.seed).streams
    return [ticks / SECOND for ticks in streams[entity].at(0, count)]


@pytest.mark.parametrize("case", ACTORS)
def test_learners_and_actors_wait_for_what_the_simulator_draws(case: str, tmp_path: Path) -> None:
    if "host" in case:
        pytest.importorskip("gymnasium")
    config = config_of(*DRAWN, *ACTORS[case], "total_steps=256", "live.pool=threads")
    with closing(Trainer(config, make_pool=Submitted)) as trainer:
        trainer.run()
        pool, usage = trainer.executor.conductor.pool, trainer.usages[0]
        directory = live_runs.left(trainer, config, tmp_path)
    learned, rolled = waits(pool, LEARNER), waits(pool, ACTOR)
    assert [seconds for _, seconds in learned] == drawn(config, "learner", usage.invocations)
    if config.actor_shards:
        seconds = drawn(config, "actor", 2 * 50)
        assert all(isinstance(one, Segment) for one, _ in rolled)
        assert all(wait == seconds[2 * one.number + one.shard] / 4 for one, wait in rolled)
    else:
        assert all(isinstance(one, Share) for one, _ in rolled)
        assert [wait for _, wait in rolled] == drawn(config, "actor", len(rolled))
        assert len(rolled) == usage.actor_invocations
    rounds = list(trace.read(directory / trace.NAME).rounds)
    check_durations(rounds, dict(zip([one[:2] for one, _ in learned], [w for _, w in learned], strict=True)))
    least = sum(wait for _, wait in rolled[:-2])  # the last ones may be under way
    assert usage.actor_busy >= least and usage.learner_busy >= sum(wait for _, wait in learned[:-3])


def check_durations(rounds: list[RoundTrace], emulated: dict[tuple[int, int], float]) -> None:
    """Every gradient of a trace takes the emulated seconds of its minibatch at least."""
    gradients = [one for round_ in rounds for group in round_.record.groups for one in group.gradients]
    assert len(gradients) >= 32
    for one in gradients:
        assert one.end - one.start >= emulated[one.fragment, one.minibatch]


def test_a_replay_is_of_what_happened(tmp_path: Path) -> None:
    config = config_of(*DRAWN, *FREE, "total_steps=192", "live.pool=threads")
    with closing(Trainer(config)) as trainer:
        trainer.run()
        directory = live_runs.left(trainer, config, tmp_path)
    again = replayed(config, directory)
    assert max(one.deviation for one in again.executor.deviations) < 1e-5
    assert again.usages == trainer.usages


class Listed(Chaos):
    """A pool in this thread that may let work die; its invocations are listed."""

    def __init__(self, config: Config, deaths: float):
        super().__init__(functions_of(config), deaths)
        self.calls: list[tuple[Call, tuple[Any, ...]]] = []

    def submit(self, call: Call, *arguments: Any) -> None:
        self.calls.append((call, arguments))
        super().submit(call, *arguments)


@pytest.mark.parametrize("case", ["pipelined", "independent"])
def test_the_draws_go_on_after_a_restore(case: str) -> None:
    """Invocations that were under way wait for their own seconds again, and the next ones for the next seconds."""
    config = config_of(*DRAWN, *ACTORS[case], "total_steps=960", "system.learners=6")
    first = Trainer(config, make_pool=lambda config, actors: Listed(config, 0.0))
    first.step()
    while not first.metadata()["timelines"][0]["learning"]:
        first.step()
        assert first.round < config.rounds - 2, "something is under way, sooner or later"
    saved = json.loads(json.dumps(first.metadata()))
    state = jax.tree.map(lambda x: x.copy(), first.state)
    kept = saved["timelines"][0]
    assert len(kept["draws"]) == len(kept["learning"])
    under_way = [(one["fragment"], one["minibatch"]) for one in kept["learning"]]
    before = {one[:2]: wait for one, wait in waits(first.executor.conductor.pool, LEARNER)}
    seconds = drawn(config, "learner", 1000)
    assert [before[one] for one in under_way] == [seconds[number] for number in kept["draws"]]

    second = Trainer(config, make_pool=lambda config, actors: Listed(config, 0.0))
    second.seed_states.state = state
    second.schedule.restore(saved)
    second.executor.restart()
    second.step()
    again = waits(second.executor.conductor.pool, LEARNER)
    assert [one[:2] for one, _ in again[: len(under_way)]] == under_way
    assert [wait for _, wait in again[: len(under_way)]] == [before[one] for one in under_way]
    invoked = kept["usage"]["invocations"]
    more = again[len(under_way) :]
    assert [wait for _, wait in more] == seconds[invoked : invoked + len(more)] != []


def test_what_dies_waits_anew() -> None:
    """The repetition of a gradient is an invocation of its own, as it is in the simulator; an actor's share is not."""
    config = config_of(*DRAWN)
    trainer = Trainer(config, make_pool=lambda config, actors: Listed(config, 0.2))
    trainer.run()
    pool, usage = trainer.executor.conductor.pool, trainer.usages[0]
    learned, rolled = waits(pool, LEARNER), waits(pool, ACTOR)
    assert usage.failures > 0 and len(learned) == usage.invocations
    assert [wait for _, wait in learned] == drawn(config, "learner", usage.invocations)
    assert {wait for _, wait in rolled} == {*drawn(config, "actor", usage.actor_invocations)}


def test_nothing_is_emulated_by_default() -> None:
    """And other executors ignore the key, as they do any of `live`."""
    config = config_of(*DRAWN, "live.emulate=false", "total_steps=128")
    trainer = Trainer(config, make_pool=lambda config, actors: Listed(config, 0.0))
    trainer.run()
    pool = trainer.executor.conductor.pool
    assert not any(isinstance(arguments[-1], Wait) for _, arguments in pool.calls)
    simulated = [Trainer(config.replace({"executor": "simulated", "live.emulate": on})) for on in (False, True)]
    for one in simulated:
        one.run()
    assert (params(simulated[0]) == params(simulated[1])).all()
