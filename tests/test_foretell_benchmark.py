"""Figures of `benchmark.py foretell`, on timelines whose durations are known."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from benchmarks import counting, foretell
from benchmarks.shared_cores import SharedCores, alone
from benchmarks.steadiness import Steady, seconds_of_machine, steadily
from stellaris_jax.base.errors import RunError
from stellaris_jax.config.sections import DelayConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.job import as_executed
from stellaris_jax.execute.loading import load_config
from stellaris_jax.live.emulation import Emulation
from stellaris_jax.live.pool import ACTOR, LEARNER, Call, Done, Pool
from stellaris_jax.timeline import Round, Timeline
from stellaris_jax.timeline.jobs import Job

ROUNDS = 8


def job_of(setting: str, **delays: float) -> Config:
    """Configuration of a setting as the simulator has it, with other median seconds."""
    config = as_executed(load_config(foretell.overrides_of(foretell.SETTINGS[setting], 0, ROUNDS, "threads")))
    seconds = {"learner": 0.02, "actor": 0.1, "aggregate": 0.004, "loader": 0.01} | delays
    drawn = {
        f"delays.{kind}": DelayConfig("lognormal" if kind in ("learner", "actor") else "constant", median)
        for kind, median in seconds.items()
    }
    return config.replace({"executor": "simulated", **drawn, **foretell.MEASURED})


def rounds_of(timeline: Timeline) -> list[Round]:
    return [timeline.next_round() for _ in range(ROUNDS)]


def on(config: Config, cores: int, emulation: Emulation | None = None) -> list[Round]:
    """Rounds on so many cores."""
    timeline = SharedCores.on(config, cores)
    timeline.emulation = emulation
    return rounds_of(timeline)


def test_ten_settings_vary_what_was_asked_for() -> None:
    assert len(foretell.SETTINGS) == 10
    computing = [name for name, setting in foretell.SETTINGS.items() if "live.emulate=true" not in setting]
    assert len(computing) == 6
    configs = [load_config(setting) for name, setting in foretell.SETTINGS.items() if name.startswith("cartpole")]
    assert {config.system.data_admission for config in configs} == {"fifo", "capacity", "bounded"}
    assert {config.system.learners for config in configs} == {2, 4}
    assert 3 not in {config.system.learners for config in configs}, "the run that calibrates is none of them"
    assert all(config.actor_shards == 2 and config.segments == 1 for config in configs)


@pytest.mark.parametrize("setting", ["cartpole-fifo-4", "cartpole-capacity-4", "cartpole-tails-bounded-2"])
def test_with_enough_cores_and_a_fast_driver_it_is_the_simulator(setting: str) -> None:
    config = job_of(setting, aggregate=0.0, loader=0.0)
    ours, plain = on(config, 100), rounds_of(Timeline.of(config, config.seed))
    assert [one.groups for one in ours] == [one.groups for one in plain]
    figures = foretell.Figures.of(config, ours)
    assert figures == pytest.approx(foretell.Figures.of(config, plain), rel=1e-6)


def test_the_driver_takes_results_when_it_is_idle() -> None:
    """No gradient ends while another is aggregated, and all that have waited are taken at the same time."""
    rounds = on(job_of("cartpole-fifo-4"), 100)
    groups = [group for one in rounds for group in one.groups]
    ends = [gradient.end for group in groups for gradient in group.gradients]
    for group in groups:
        assert not any(group.second + 1e-9 < end < group.published - 1e-9 for end in ends)
    assert len(set(ends)) < len(ends)


def test_jobs_do_not_wait_for_the_driver() -> None:
    """Results that the driver takes once it has aggregated came in between; others are taken when they come."""
    jobs = [Job("learner", 0.0, 1.0, "1"), Job("aggregate", 1.0, 3.0), Job("loader", 1.0, 2.0),
            Job("learner", 1.5, 3.001, "1"), Job("actor", 2.0, 4.0, "1")]  # fmt: skip
    call = Call(LEARNER, 1, 0)
    ended = {
        (LEARNER, "1"): [Done(call, True, 0.5, 1.0), Done(call, True, 0.501, 1.5)],
        (ACTOR, "1"): [Done(call, True, 1.0, 2.0)],
    }
    known = counting.timed(jobs, ended)
    assert {(job.kind, job.start): computed for job, computed in known} == {
        (LEARNER, 0.0): 0.5, ("aggregate", 1.0): None, ("loader", 1.0): None, (LEARNER, 1.5): 0.501, (ACTOR, 2.0): 1.0
    }  # fmt: skip
    seconds = {(job.kind, job.start): job.end - job.start for job in counting.without_driver(known[1:])}
    assert seconds == pytest.approx(
        {("aggregate", 2.0): 1.0, ("loader", 1.0): 1.0, (LEARNER, 1.5): (0.501 + 1.501) / 2, (ACTOR, 2.0): 2.0}
    )


def test_functions_share_cores() -> None:
    """On one core all that computes takes the sum of its seconds."""
    config = job_of("cartpole-fifo-4")
    rounds = on(config, 1)
    jobs = list(foretell.jobs_of((one, ()) for one in rounds))
    busy = [job for job in alone(jobs, 1) if job.kind == LEARNER]
    streams = Timeline.of(config, config.seed).streams
    drawn = sorted(ticks / 1e9 for ticks in streams["learner"].at(0, len(busy)))
    # Fragments and gradients that were under way at the end are in no record.
    known = sorted(job.end - job.start for job in busy)
    assert sum(known[: len(known) // 2]) == pytest.approx(sum(drawn[: len(drawn) // 2]), rel=0.1)
    slow, fast = (foretell.Figures.of(config, on(config, cores)).seconds for cores in (1, 2))
    assert 1.5 < slow / fast < 2.1


def test_durations_alone() -> None:
    """Two of three jobs have a core each at any time; on one core those side by side take twice as long."""
    jobs = [Job("learner", 0.0, 4.0), Job("actor", 2.0, 4.0), Job("learner", 6.0, 7.0)]
    assert [job.end - job.start for job in alone(jobs, 2)] == pytest.approx([4.0, 2.0, 1.0])
    assert [job.end - job.start for job in alone(jobs, 1)] == pytest.approx([3.0, 1.0, 1.0])


def test_emulated_waits_are_added_and_take_no_core() -> None:
    """Computation of no length leaves the drawn seconds of live runs, on any number of cores."""
    name = "cartpole-tails-fifo-4"
    live = as_executed(load_config(foretell.overrides_of(foretell.SETTINGS[name], 0, ROUNDS, "threads")))
    instant = job_of(name, learner=1e-9, actor=1e-9, aggregate=0.0, loader=0.0)
    delays = {f"delays.{kind}": getattr(live.delays, kind) for kind in ("learner", "actor")}
    plain = rounds_of(Timeline.of(instant.replace(delays), 0))
    for cores in (1, 4):
        figures = foretell.Figures.of(live, on(instant, cores, Emulation(live, 0)))
        assert figures == pytest.approx(foretell.Figures.of(live, plain), rel=1e-3)


class Ending(Pool):
    """Pool whose invocations end at once: two seconds of computing, and the emulated wait."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def submit(self, call: Call, *arguments: Any) -> None:
        self.calls.append(call)

    def wait(self) -> list[Done]:
        ended, self.calls = self.calls, []
        return [Done(call, 1, 2.0 + call.grace, 5.0 + call.grace) for call in ended]


def test_the_share_of_computing() -> None:
    pool = counting.Counting(Ending())
    pool.submit(Call(LEARNER, 0, 1, 3.0))
    pool.submit(Call(ACTOR, 0, 2))
    assert len(pool.wait()) == 2
    assert (pool.computed, pool.emulated) == (4.0, 3.0)
    assert counting.share_of(pool.computed, pool.emulated) == pytest.approx(4 / 7)
    assert pool.get(pool.put("value")) == "value"


def test_hits_and_the_table() -> None:
    real = [foretell.Figures(10.0, 2.0, 0.9, 0.5, 1.0)] * 5
    near = [real[0]._replace(seconds=1.1, staleness=4.0)] * 5
    far = [real[0]._replace(data_lag=12.0)] * 5
    rows = [foretell.row_of("cartpole-fifo-2", real, some, [1.0, 0.5]) for some in (near, far)]
    assert [row["hit"] for row in rows] == [True, False], "staleness is not judged"
    assert rows[0]["seconds"]["error"] == pytest.approx(0.1) and rows[0]["seconds"]["error_ci95"] == 0.0
    assert rows[0]["share"] == 0.75
    shown, missed = foretell.rows({"rows": rows})
    assert (shown["hit"], missed["hit"], shown["computing"]) == ("yes", "no", "75%")
    assert shown["seconds"] == "1 / 1.1 (+10% ± 0%)"


def test_a_stopped_measurement_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each live run is made once; others are made if the settings change."""
    made: list[Config] = []

    def lived(config: Config) -> foretell.Lived:
        made.append(config)
        rounds = on(job_of("cartpole-fifo-2"), 2)
        jobs = list(foretell.jobs_of((one, ()) for one in rounds))
        return foretell.Lived(
            foretell.Figures.of(config, rounds),
            1.0,
            [counting.Timed(job) for job in jobs],
            rounds[foretell.SKIPPED].start,
        )

    monkeypatch.setattr(foretell, "lived", lived)
    monkeypatch.setattr(foretell, "cores", lambda: 2)
    monkeypatch.setattr(foretell, "steadily", lambda run, *_: Steady(run(), 1.0, 0))
    monkeypatch.setenv("XLA_FLAGS", foretell.ONE_CORE)
    result = foretell.measure(["cartpole-fifo-2"], 2, ROUNDS, "threads", tmp_path, print)
    assert len(made) == 3 and [config.system.learners for config in made] == [3, 2, 2]
    assert json.loads(json.dumps(result))["computing"] == 1
    (row,) = result["rows"]
    assert abs(row["seconds"]["error"]) < 0.2 and abs(row["data_lag"]["error"]) < 0.2
    assert foretell.measure(["cartpole-fifo-2"], 2, ROUNDS, "threads", tmp_path, print) == result
    assert len(made) == 3
    foretell.measure(["cartpole-fifo-2"], 2, ROUNDS + 1, "threads", tmp_path, print)
    assert len(made) == 6


# The machine's speed --------------------------------------------------------------------------------------------------


def tried(speeds: list[float], usual: float | None) -> tuple[Steady[int], list[str]]:
    """`steadily` with these speeds of the machine, one after the other; the result counts the runs."""
    notes: list[str] = []
    runs, measured = count(1), iter(speeds)
    return steadily(lambda: next(runs), usual, notes.append, lambda: next(measured), pause=0.0), notes


def test_runs_of_a_machine_that_is_not_steady_are_thrown_away() -> None:
    assert tried([1.0, 1.05], None) == (Steady(1, 1.0, 0), [])
    # too slow before, too slow after, too fast after, steady
    steady, notes = tried([1.2, 1.0, 1.3, 0.95, 0.8, 1.09, 0.91], 1.0)
    assert (steady.result, steady.seconds, steady.repeated) == (3, 1.09, 3)
    assert [note.split(":")[0] for note in notes] == ["waiting", "thrown away", "thrown away"]


def test_a_machine_that_is_never_steady_ends_the_measurement() -> None:
    with pytest.raises(RunError, match=r"^The machine's speed differed by more than 10% from the usual one in 8 tries"):
        tried([2.0] * 8, 1.0)


def test_the_machines_seconds_are_positive() -> None:
    assert 0.0 < seconds_of_machine() < 60.0
