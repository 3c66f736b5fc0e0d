"""Staleness of a log of jobs, beside what the simulator foretells."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from job_logs import SMALL, aggregate, learner, log_of

from stellaris_jax import load_config
from stellaris_jax.timeline import Timeline
from stellaris_jax.timeline import prediction as foretold
from stellaris_jax.timeline.joblog import jobs_of, read_log
from stellaris_jax.timeline.jobs import write
from stellaris_jax.timeline.prediction import comparison


def test_staleness_up_to_the_aggregation(tmp_path: Path) -> None:
    """Batches tell by which aggregation a gradient has waited; what was thrown away has none."""
    log = log_of(
        tmp_path / "jobs.jsonl",
        learner(0, 1, version_start=3, version_end=3, batch="g"), learner(0, 2, version_start=2, batch="g"),
        learner(0, 2, version_start=0),
        aggregate(4, 5, version_start=5, version_end=6, batch="g"),
    )  # fmt: skip
    assert read_log(log).staleness() == (2.5, 2, True)


@pytest.mark.parametrize(
    ("rows", "mean"),
    [
        ([learner(0, 1, version_start=3, version_end=5)], 2.0),
        ([learner(0, 4, version_start=3), learner(2, 3, version_start=4), learner(4, 5, version_start=9)], 1 / 3),
        ([learner(0, 4, version=3), aggregate(3, 4, version_start=5, version_end=6)], 3.0),
        ([learner(0, 0, version_start=3)], 0.0),
    ],
    ids=["its end", "starts of others", "published", "an instant"],
)
def test_staleness_up_to_the_end_of_a_job(rows: list[dict[str, Any]], mean: float, tmp_path: Path) -> None:
    staleness = read_log(log_of(tmp_path / "jobs.jsonl", *rows)).staleness()
    assert staleness is not None and staleness[0] == pytest.approx(mean) and not staleness.aggregated


def test_what_is_simulated_is_foretold(tmp_path: Path) -> None:
    """A log of a simulation has the simulation's own staleness, which is foretold."""
    config = load_config([*SMALL, "system=async", "system.learners=3", "platform.actors=2", "delays=exponential"])
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(config.rounds)]
    stale = [gradient.staleness for one in rounds for group in one.groups for gradient in group.gradients]
    with (tmp_path / "jobs.csv").open("w") as file:
        write(file, jobs_of((one, []) for one in rounds), "csv")
    found = read_log(tmp_path / "jobs.csv")
    assert found.staleness() == (pytest.approx(sum(stale) / len(stale)), len(stale), True)
    again = load_config([*SMALL, "system=async", "platform.actors=2", "delays=trace", f"delays.log={tmp_path}/jobs.csv",
                         "delays.actor.kind=constant"])  # fmt: skip
    assert again.system.learners == 3
    staleness, utilisation = comparison(again)
    numbers = re.search(r"when gradients are aggregated was (\S+) \(\d+ gradients\); .* foretells (\S+) \(", staleness)
    assert numbers and float(numbers[1]) == pytest.approx(float(numbers[2]), rel=0.2)
    assert "its learners computed" in utilisation


def test_the_same_gradients_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate of Stellaris closes as it goes: the mean of many gradients is not that of the first ones."""
    monkeypatch.setattr(foretold, "MOST", 400)
    system = ["system=stellaris", "system.learners=4", "platform.actors=2", "delays.actor.kind=constant"]
    config = load_config([*SMALL, *system, "delays.learner.kind=exponential", "total_steps=64000"])
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(300)]
    for count in (10, 300):
        with (tmp_path / f"{count}.csv").open("w") as file:
            write(file, jobs_of((one, []) for one in rounds[:count]), "csv")
    early, late = (read_log(tmp_path / f"{count}.csv").staleness() for count in (10, 300))
    assert early and late and early.mean > 1.3 * late.mean
    for count, most in ((10, early.jobs), (300, 400)):
        traced = ["delays.learner.kind=trace", f"delays.learner.options.log={tmp_path}/{count}.csv"]
        staleness, _ = comparison(load_config([*SMALL, *system, *traced, "total_steps=64000"]))
        found = re.search(r"was (\S+) \((\d+) gradients\); .* foretells (\S+) \((\d+) ", staleness)
        assert found and float(found[1]) == pytest.approx(float(found[3]), rel=0.15)
        assert int(found[2]) == most and most <= int(found[4]) < most + 64


# What actors made -----------------------------------------------------------------------------------------------------


def request(start: float, end: float, **columns: Any) -> dict[str, Any]:
    return {"request": "r", "start": start, "end": end, **columns}


def test_versions_that_pass_while_requests_run(tmp_path: Path) -> None:
    """A version is published when an aggregation ends. Requests without a version do not count."""
    log = log_of(
        tmp_path / "jobs.jsonl",
        request(0, 4, version_start=3), request(0, 1, version=3), request(0, 9),
        aggregate(2, 3, version_start=3, version_end=5),
    )  # fmt: skip
    assert read_log(log).published_during("actor") == (1.0, 2, False)
    assert read_log(log).published_during("actor", 1) == (0.0, 1, False)
    bare = log_of(tmp_path / "bare.jsonl", request(0, 4), aggregate(2, 3, version_start=3, version_end=5))
    assert read_log(bare).published_during("actor") is None


def test_what_actors_of_a_simulation_made_is_foretold(tmp_path: Path) -> None:
    """A log of a simulation with independent actors has the simulation's own versions per fragment."""
    system = ["system=async", "system.learners=2", "system.actors=independent", "system.actor_shards=2"]
    config = load_config([*SMALL, *system, "platform.actors=2", "delays=exponential", "total_steps=6400"])
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(config.rounds)]
    with (tmp_path / "jobs.csv").open("w") as file:
        write(file, jobs_of((one, []) for one in rounds), "csv")
    found = read_log(tmp_path / "jobs.csv").published_during("actor")
    prediction = foretold.Foretold.of(config, 10**9)
    assert found is not None and found.mean > 0.5
    assert (prediction.rolled, prediction.fragments) == (pytest.approx(found.mean), found.jobs)
    traced = ["delays.actor.kind=trace", f"delays.actor.options={{log: {tmp_path}/jobs.csv, job: actor}}"]
    (sentence,) = comparison(load_config([*SMALL, *system, "platform.actors=2", "delays=exponential", *traced]))
    numbers = re.search(r": (\S+) versions were published .* foretells (\S+) \(", sentence)
    assert numbers and float(numbers[1]) == pytest.approx(float(numbers[2]), rel=0.3)


def test_lockstep_actors_are_not_foretold(tmp_path: Path) -> None:
    log = log_of(tmp_path / "jobs.jsonl", request(0, 4, version=3), aggregate(2, 3, version_start=3, version_end=5))
    traced = f"delays.actor={{kind: trace, seconds: 1, options: {{log: {log}, job: actor}}}}"
    (sentence,) = comparison(load_config([*SMALL, traced]))
    assert sentence == (
        f"{log}: 2 versions were published on average while an actor's job ran (jobs: 1), and waiting adds to that."
    )
