"""Timelines as trace events: what Perfetto needs of them, and that they say what happened."""

from __future__ import annotations

import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from commands import call

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.execute.run import train
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report.perfetto import export_jobs
from stellaris_jax.timeline import Timeline, trace
from stellaris_jax.timeline.delays import delay_of
from stellaris_jax.timeline.joblog import durations, read_log
from stellaris_jax.timeline.jobs import KINDS
from stellaris_jax.timeline.plan import MinibatchLayout

SMALL = (
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "algorithm.epochs=2",
    "total_steps=320",
    "system.learners=3",
    "evaluation.episodes=0",
    "run.loggers=[]",
)
NEEDED = {
    "X": {"name", "ts", "dur"},
    "s": {"id", "ts", "cat"},
    "f": {"id", "ts", "cat", "bp"},
    "C": {"name", "ts", "args"},
    "M": {"name", "args"},
}


@pytest.fixture(scope="module")
def lived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a live run."""
    run_dir = tmp_path_factory.mktemp("live")
    config = load_config([*SMALL, "executor=live", "live.actors=2"])
    trainer = Trainer(config.replace({"live.pool": "threads"}))
    trainer.run()
    trainer.write(run_dir)
    trainer.close()
    (run_dir / "config.yaml").write_text(to_yaml(config))
    return run_dir


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a simulated run."""
    run_dir = tmp_path_factory.mktemp("simulated") / "run"
    train(load_config([*SMALL, "platform.actors=2", "system.actors=pipelined", f"run.dir={run_dir}"]))
    return run_dir


def exported(run_dir: Path, *arguments: str) -> list[dict[str, Any]]:
    path = run_dir / "out.json"
    done = call("plot.py", "--trace", path, run_dir, *arguments)
    assert done.returncode == 0, done.stderr
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return events


@pytest.mark.parametrize("kind", ["lived", "simulated"])
def test_it_is_what_the_format_asks_for(kind: str, request: pytest.FixtureRequest) -> None:
    run_dir = request.getfixturevalue(kind)
    events = exported(run_dir)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert set(tracks.values()) == {"aggregations", "learner 0", "learner 1", "learner 2", "actor 0", "actor 1"}
    for event in events:
        assert NEEDED[event["ph"]] <= event.keys()
        assert isinstance(event["pid"], int) and isinstance(event["tid"], int)
        assert event.get("ts", 0.0) >= 0.0 and event.get("dur", 0.0) >= 0.0
        if event["ph"] != "M":
            assert (event["pid"], event["tid"]) in tracks
    slices = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            slices[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for rows in slices.values():  # those of a track follow one another
        rows.sort()
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(rows))
    begins = {e["id"]: e for e in events if e["ph"] == "s"}
    assert begins
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert begins.keys() == ends.keys() and len(begins) == sum(e["ph"] == "s" for e in events)
    assert all(isinstance(number, int) and begins[number]["ts"] <= ends[number]["ts"] for number in begins)
    for kind_of, track in ((begins, "learner"), (ends, "aggregations")):
        for event in kind_of.values():
            place = (event["pid"], event["tid"])
            assert tracks[place].startswith(track)
            assert any(start <= event["ts"] <= end for start, end in slices[place])


@pytest.mark.parametrize("kind", ["lived", "simulated"])
def test_it_says_what_happened(kind: str, request: pytest.FixtureRequest) -> None:
    run_dir = request.getfixturevalue(kind)
    events = exported(run_dir)
    if kind == "lived":
        rounds = [one.record for one in trace.read(run_dir / trace.NAME).rounds]
    else:
        config = load_config([*SMALL, "platform.actors=2", "system.actors=pipelined"])
        timeline = Timeline.of(config, 0)
        rounds = [timeline.next_round() for _ in range(config.rounds)]
        last = json.loads((run_dir / "metrics.jsonl").read_text().splitlines()[-1])
        dollars = [e["args"]["dollars"] for e in events if e["name"] == "dollars"]
        assert dollars[-1] == pytest.approx(last["cost_usd"])
        assert dollars == sorted(dollars) and len(dollars) == config.rounds
    usage = rounds[-1].usage
    named = [event["name"] for event in events if event["ph"] == "X"]
    assert sum("minibatch" in name for name in named) == usage.gradients
    assert sum(name.startswith("version") for name in named) - usage.updates in (0, 1)  # the last may be under way
    assert sum(name.startswith("fragment") and "," not in name for name in named) == usage.actor_invocations
    queue = [event["args"]["queue"] for event in events if event["name"] == "queue"]
    assert min(queue) >= 0 and queue[-1] == 0
    first = exported(run_dir, "--timeline", "1")
    assert 0 < len(first) < len(events)


@pytest.mark.parametrize("kind", ["lived", "simulated"])
def test_a_timeline_becomes_a_log(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    run_dir = request.getfixturevalue(kind)
    for form in ("csv", "jsonl"):
        done = call("plot.py", "--trace", tmp_path / f"jobs.{form}", run_dir)
        assert done.returncode == 0, done.stderr
    found = read_log(tmp_path / "jobs.csv")
    assert found.staleness() == read_log(tmp_path / "jobs.jsonl").staleness()
    assert (found.workers("learner"), found.workers("actor")) == (3, 2)
    if kind == "lived":
        direct = read_log(run_dir)
        assert found.staleness() == direct.staleness()
        assert all(found.durations(one) == direct.durations(one) for one in KINDS)
    else:
        timeline = Timeline.of(load_config([*SMALL, "platform.actors=2", "system.actors=pipelined"]), 0)
        rounds = [timeline.next_round() for _ in range(5)]
        stale = [number for one in rounds for number in one.staleness()]
        assert found.staleness() == (sum(stale) / len(stale), len(stale), True)


# Independent actors --------------------------------------------------------------------------------------------------


INDEPENDENT = (
    "system=areal", "delays=pareto", "system.actor_shards=2", "platform.actors=4", "system.sync_steps=4",
    "system.data_admission=bounded", "delays.actor_failure=0.2", "delays.loader.seconds=0.1", "total_steps=640",
)  # fmt: skip


@pytest.fixture
def independent(tmp_path: Path) -> tuple[Path, list[Any]]:
    """A directory with the records that the export reads, and the rounds of the run."""
    config = load_config([*SMALL, *INDEPENDENT])
    timeline = Timeline.of(config, 0)
    rounds = [timeline.next_round() for _ in range(config.rounds)]
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    seeds = {"actors": [4], "train_return": [1.0]}
    rows = [{"kind": "round", "round": one.index + 1, "env_steps": 1, "per_seed": seeds} for one in rounds]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path, rounds


def test_independent_actors_have_tracks_of_shards(independent: tuple[Path, list[Any]]) -> None:
    run_dir, rounds = independent
    events = exported(run_dir)
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert {"shard 0", "shard 1", "batches"} <= set(tracks.values()) and "actor 0" not in tracks.values()
    slices = [event for event in events if event["ph"] == "X"]
    assert all((event["pid"], event["tid"]) in tracks and event["dur"] >= 0.0 for event in slices)
    named = [event["name"] for event in slices]
    usage = rounds[-1].usage
    assert usage.fragments_dropped > 0 and usage.actor_failures > 0
    assert sum(name.endswith(", dropped") for name in named) == usage.fragments_dropped
    assert sum(name.endswith(", died") for name in named) == usage.actor_failures
    batches = [event for event in slices if tracks[event["pid"], event["tid"]] == "batches"]
    assert [event["name"] for event in batches] == [f"batch {i}" for i in range(len(batches))]
    for shard in ("shard 0", "shard 1"):
        own = [event for event in slices if tracks[event["pid"], event["tid"]] == shard]
        outer = sorted((e["ts"], e["ts"] + e["dur"]) for e in own if e["name"].startswith("fragment"))
        assert all(end <= start + 1e-3 for (_, end), (start, _) in pairwise(outer)), "one fragment after the other"
        for event in own:
            start, end = event["ts"], event["ts"] + event["dur"]
            assert any(left - 1e-3 <= start and end <= right + 1e-3 for left, right in outer)
    used = {(f.shard, f.number): f.versions for one in rounds for batch in one.batches for f in batch.fragments}
    ended = [e for e in slices if "order" in e["args"] and "," not in e["name"]]
    shown = {(e["tid"], int(e["name"].split()[1])): e["args"]["versions"] for e in ended}
    assert used.items() <= shown.items()


def test_the_data_queue_is_counted(independent: tuple[Path, list[Any]]) -> None:
    run_dir, rounds = independent
    counted = [event for event in exported(run_dir) if event["name"] == "data queue"]
    lengths = [event["args"]["data queue"] for event in counted]
    assert min(lengths) >= 0 and max(lengths) > 1 and lengths[-1] == rounds[-1].waiting
    for one in rounds[1:]:
        until = [event["args"]["data queue"] for event in counted if event["ts"] <= one.usage.seconds * 1e6 + 1e-3]
        assert until[-1] == one.waiting


def test_a_log_has_the_fragments_of_shards(independent: tuple[Path, list[Any]]) -> None:
    run_dir, rounds = independent
    done = call("plot.py", "--trace", run_dir / "jobs.csv", run_dir)
    assert done.returncode == 0, done.stderr
    log = read_log(run_dir / "jobs.csv")
    fragments = [f for one in rounds for batch in one.batches for f in batch.fragments]
    fragments += [f for one in rounds for f in one.dropped_fragments]
    assert log.workers("actor") == 2
    assert sorted(log.durations("actor")) == pytest.approx(sorted(f.end - f.begin for f in fragments))
    assert log.durations("loader") == pytest.approx([0.1] * sum(len(one.batches) for one in rounds))
    batches = [event["dur"] for event in exported(run_dir) if event["name"].startswith("batch ")]
    assert batches == pytest.approx([1e5] * len(log.durations("loader")))
    newest = log.kinds["actor"].ended
    assert max(newest) <= rounds[-1].usage.updates and all(
        first <= last for first, last in zip(log.kinds["actor"].begun, newest, strict=True)
    )


def test_durations_by_episodes_are_not_known_again(independent: tuple[Path, list[Any]]) -> None:
    run_dir, _ = independent
    config = load_config([*SMALL, *INDEPENDENT, "delays.by=episodes", "delays.actor_failure=0"])
    (run_dir / "config.yaml").write_text(to_yaml(config))
    done = call("plot.py", "--trace", run_dir / "out.json", run_dir)
    assert done.returncode == 2 and "durations follow its episodes" in done.stderr


def test_mistakes(tmp_path: Path, lived: Path) -> None:
    done = call("plot.py", "--trace", tmp_path / "x.json", tmp_path)
    assert done.returncode == 2 and "holds no run" in done.stderr
    done = call("plot.py", "--trace", tmp_path / "nowhere" / "x.json", lived)
    assert done.returncode != 0 and "No such file" in done.stderr
    done = call("plot.py", "--trace", tmp_path / "x.json", lived, lived)
    assert done.returncode != 0 and "takes one run directory" in done.stderr


# Durations of a log ---------------------------------------------------------------------------------------------------


def test_durations_of_a_log(tmp_path: Path) -> None:
    log = tmp_path / "jobs.jsonl"
    jobs = [
        {"kind": "learner", "start": 5.0, "end": 5.5, "version": 3},
        {"kind": "learner", "start": 1.0, "end": 1.25},
        {"kind": "actor", "start": 0.0, "end": 3.0},
        {"kind": "aggregate", "start": 1.0, "end": 1.0625},
    ]
    log.write_text("\n".join(map(json.dumps, jobs)) + "\n\n")
    assert durations(log, "learner") == [0.25, 0.5]  # by their starts
    free = [f"platform.{name}=0" for name in ("cache", "rpc", "shared_memory")]
    config = load_config([*SMALL, *free, "delays=trace", f"delays.log={log}", "system=allreduce", "platform.actors=2"])
    assert delay_of(config.delays.learner).table == (0.25, 0.5)
    record = Timeline.of(config, 0).next_round()
    assert record.complete == 3.0
    seconds = {round(g.end - g.start, 6) for group in record.groups for g in group.gradients}
    assert seconds == {0.25, 0.5}


def test_durations_of_a_live_run(lived: Path) -> None:
    config = load_config([*SMALL, "delays=trace", f"delays.log={lived}"])
    rounds = [one.record for one in trace.read(lived / trace.NAME).rounds]
    gradients = [g for one in rounds for group in one.groups for g in group.gradients]
    assert sorted(delay_of(config.delays.learner).table) == pytest.approx(sorted(g.end - g.start for g in gradients))
    assert len(delay_of(config.delays.actor).table) == 2 * len(rounds)
    aggregate = sum(delay_of(config.delays.aggregate).table)  # from when a group is formed
    assert rounds[-1].usage.aggregate_busy <= aggregate <= rounds[-1].usage.seconds


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (None, "is no log of jobs: No such file"),
        ("", "has no job of kind [a-z]+ that takes time"),
        ("nonsense\n", "line 1: 'nonsense' is no job with kind, start and end"),
        ('{"kind": "learner", "start": 2, "end": 1}\n', "line 1: a job ends after it starts"),
        ('{"kind": "learner", "start": NaN, "end": 1}\n', "line 1, column start: nan is no time"),
    ],
)
def test_logs_that_are_none(text: str | None, sentence: str, tmp_path: Path) -> None:
    log = tmp_path / "jobs.jsonl"
    if text is not None:
        log.write_text(text)
    with pytest.raises(ConfigError, match=sentence):
        load_config([*SMALL, "delays=trace", f"delays.log={log}"])


def test_a_log_must_be_named() -> None:
    with pytest.raises(ConfigError, match=r"delays.learner.kind=trace needs delays.learner.options.log"):
        load_config([*SMALL, "delays=trace"])


def test_a_run_without_rounds_is_no_log(tmp_path: Path) -> None:
    config = load_config([*SMALL])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    with pytest.raises(ConfigError, match="has no rounds yet, so there is no timeline of it"):
        export_jobs(tmp_path, MinibatchLayout.of(config), tmp_path / "jobs.csv")
    assert not (tmp_path / "jobs.csv").exists()
