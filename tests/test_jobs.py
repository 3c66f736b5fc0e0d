"""Logs of jobs: their schema in JSONL and CSV, what is wrong with some, and what is counted and compared of them."""

from __future__ import annotations

import io
import json
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from commands import REPOSITORY, call
from hostile_files import MIB, little_memory
from job_logs import SMALL, actor, aggregate, learner, log_of
from telemetry import round_record

from stellaris_jax import ConfigError, load_config
from stellaris_jax.config.stored import to_yaml
from stellaris_jax.execute import run
from stellaris_jax.report.perfetto import export_jobs
from stellaris_jax.timeline import Gradient, Group, Round, Timeline, trace
from stellaris_jax.timeline.joblog import durations, jobs_of
from stellaris_jax.timeline.jobs import COLUMNS, KINDS, REQUEST, Job, read, write
from stellaris_jax.timeline.plan import MinibatchLayout
from stellaris_jax.timeline.prediction import comparison
from stellaris_jax.timeline.trace import Header, Roll, RoundTrace

EXAMPLES = {form: REPOSITORY / "examples" / "cluster" / f"jobs.{form}" for form in ("jsonl", "csv")}
JOBS = [
    Job("actor", 0.0, 3.0, "a", 0, 1, 64, "0"),
    Job("learner", 3.0, 4.5, "0", 1, 4, 32, "5"),
    Job("aggregate", 4.5, 4.75, None, 4, 5, None, "5"),
    Job("loader", 3.0, 3.5),
]


# The schema -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["jsonl", "csv"])
@pytest.mark.parametrize("name", ["suffix", "content"])
def test_what_was_written_is_read(form: str, name: str, tmp_path: Path) -> None:
    path = tmp_path / (f"jobs.{form}" if name == "suffix" else "jobs.log")
    with path.open("w") as file:
        write(file, JOBS, form)
    assert list(read(path)) == JOBS


def test_examples_are_one_log_in_both_formats() -> None:
    """Times are ISO 8601 in CSV, and seconds in JSONL."""
    assert list(read(EXAMPLES["csv"])) == list(read(EXAMPLES["jsonl"]))
    assert {job.kind for job in read(EXAMPLES["csv"])} == {*KINDS} - {"loader"}
    assert "2026-01-31T12:00:03.100Z" in EXAMPLES["csv"].read_text()


def test_every_column_is_documented() -> None:
    page = (REPOSITORY / "docs" / "jobs.md").read_text()
    assert tuple(re.findall(r"^\| `(\w+)` \| (?:yes|no) \|", page, flags=re.M)) == (*COLUMNS, REQUEST)
    for path in EXAMPLES.values():
        assert path.relative_to(REPOSITORY).as_posix() in page


@pytest.mark.parametrize(
    ("start", "end"),
    [
        (10, 10.5),
        ("10", " 10.5 "),
        ("2026-01-31T12:00:00Z", "2026-01-31T12:00:00.5Z"),
        ("2026-01-31T12:00:00+02:00", "2026-01-31T10:00:00.500000+00:00"),
    ],
)
def test_times(start: Any, end: Any, tmp_path: Path) -> None:
    log = log_of(tmp_path / "jobs.jsonl", learner(start, end))
    assert durations(log, "learner") == [0.5]


def test_tables_of_others(tmp_path: Path) -> None:
    """Columns in another order and more of them, a mark of UTF-8, and whole numbers as pandas writes them."""
    path = tmp_path / "jobs.csv"
    path.write_bytes(
        b"\xef\xbb\xbfend,node,kind,start,version_start,id\r\n4,n1,learner,2,3.0,7.0\r\n\r\n5,,actor,2,,\r\n"
    )
    assert list(read(path)) == [Job("learner", 2.0, 4.0, "7", 3), Job("actor", 2.0, 5.0)]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_requests_are_jobs_of_actors(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"requests.{form}"
    whole = '{"request": "a", "start": 1, "end": 3.5, "version": 4, "length": 9}'
    lines = [whole, '{"request": "b", "start": 1, "end": 2}']
    table = ["request,start,end,version,length", "a,1,3.5,4,9", "b,1,2,,"]
    path.write_text("\n".join(table if form == "csv" else lines))
    assert [*read(path)] == [Job("actor", 1.0, 3.5, None, 4, None, 9), Job("actor", 1.0, 2.0)]
    load_config([f"delays.actor={{kind: trace, options: {{job: actor, log: {path}}}}}"])
    assert sorted(durations(path, "actor")) == [1.0, 2.5]


@pytest.mark.parametrize("form", ["jsonl", "csv"])
def test_requests_share_a_log_with_other_jobs(form: str, tmp_path: Path) -> None:
    path = tmp_path / f"jobs.{form}"
    lines = ['{"request": "a", "start": 1, "end": 3}', '{"request": null, "kind": "learner", "start": 2, "end": 4}']
    table = ["request,kind,start,end", "a,,1,3", ",learner,2,4"]
    path.write_text("\n".join(table if form == "csv" else lines))
    assert [job.kind for job in read(path)] == ["actor", "learner"]
    path.write_text("\n".join([*table, ",,5,6"]) if form == "csv" else '{"request": null, "start": 1, "end": 2}')
    with pytest.raises(ConfigError, match=r"lacks kind \(or request, for a completion\)"):
        list(read(path))


def test_logs_of_the_first_schema_are_read(tmp_path: Path) -> None:
    """Their `version` is the one at the start; what else it may be was left open."""
    rows = [learner(0, 1, version=3), learner(1, 2, version="3fa9"), learner(2, 3)]
    assert [job.version_start for job in read(log_of(tmp_path / "jobs.jsonl", *rows))] == [3, None, None]


ISO = "2026-01-31T12:00:00"
MISTAKES = {
    "kind": ('{"kind": "lerner", "start": 0, "end": 1}', "line 2, column kind: 'lerner' is not one of learner, actor, "
             "aggregate, loader; did you mean learner?"),
    "list": ('{"kind": [], "start": 0, "end": 1}', r"line 2, column kind: \[\] is not one of"),
    "no zone": (f'{{"kind": "actor", "start": "{ISO}", "end": 1}}', f"column start: '{ISO}' is no time; write seconds"),
    "other sort": (f'{{"kind": "actor", "start": 1, "end": "{ISO}Z"}}', "column end: .* is written unlike earlier"),
    "no time": ('{"kind": "actor", "start": true, "end": 1}', "column start: True is no time"),
    "NaN": ('{"kind": "actor", "start": NaN, "end": 1}', "column start: nan is no time"),
    "milliseconds": ('{"kind": "actor", "start": 1.7e12, "end": 1}', r"column start: 1700000000000.0 must be seconds"),
    "infinite": ('{"kind": "actor", "start": 0, "end": Infinity}', "column end: inf must be seconds"),
    "huge": (f'{{"kind": "actor", "start": 0, "end": 1{"0" * 400}}}', "column end: .* is no time"),
    "backwards": ('{"kind": "actor", "start": 2, "end": 1}', "line 2: a job ends after it starts"),
    "version": ('{"kind": "actor", "start": 0, "end": 1, "version_start": -1}', "column version_start: -1 must be a"),
    "versions": ('{"kind": "actor", "start": 0, "end": 1, "version_start": 3, "version_end": 2}',
                 "column version_end: 2 must be at least version_start, which is 3"),
    "length": ('{"kind": "actor", "start": 0, "end": 1, "length": 1.5}', "column length: 1.5 must be a whole number"),
    "id": (json.dumps(actor(id="x" * 201)), "column id: .* must be a whole number or a text of at most 200"),
    "batch": (json.dumps(actor(batch=[1])), r"column batch: \[1\] must be a whole number or a text"),
    "schema": (json.dumps(actor(schema=3)), "column schema: 3 is unknown; 2 is read, or no schema at all"),
    "deep": ("[" * 100_000, "line 2: .* is no job with kind, start and end"),
    "twice": ('{"kind": "actor", "start": 0, "start": 1, "end": 2}', "column start: the line names it twice; once is"),
    "request's version": ('{"request": "a", "start": 0, "end": 1, "version": -3}', "version: -3 must be a whole"),
    "request": ('{"request": "a", "request": "b", "start": 0, "end": 1}', "column request: the line names it twice"),
    "request of a learner": (
        '{"request": "a", "kind": "learner", "start": 0, "end": 1}',
        "column kind: 'learner' does not go with request",
    ),
    "request without": ('{"request": "a", "start": 0}', "line 2: .* lacks end"),
    "without": ('{"kind": "actor", "start": 0, "end": null}', "line 2: .* lacks end"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", list(MISTAKES))
def test_mistakes_are_told_with_their_place(mistake: str, tmp_path: Path) -> None:
    line, sentence = MISTAKES[mistake]
    path = tmp_path / "jobs.jsonl"
    path.write_text(f'{{"kind": "actor", "start": 0, "end": 1}}\n{line}\n')
    with pytest.raises(ConfigError, match=sentence) as caught:
        durations(path, "learner")
    assert str(caught.value).startswith(f"{path}, line 2") and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (b"kind,start\nactor,1\n", r"line 1: the header \['kind', 'start'\] lacks end"),
        (b"kind,start,end,start\n", "line 1, column start: the header names it twice"),
        (b"kind,start,end,version,version\n", "line 1, column version: the header names it twice"),
        (b"kind,start,end\n\nactor,1\n", "line 3: a row has 3 cells as the header, not 2"),
        (b"kind,start,end\nactor,1,soon\n", "line 2, column end: 'soon' is no time"),
        (b"kind,start,end\nactor,,1\n", "line 2, column start: '' is no time"),
        (b'kind,start,end\n"actor,1,2\n', "line 2: this is no CSV"),
        (b'kind,start,end\n"' + b"x" * 200_000 + b'",1,2\n', "line 2: this is no CSV"),
        (b"kind,start,end\nactor,1,\xff\n", "line 2, byte 9: a log must be text in UTF-8"),
        (b"x" * (2 * MIB), "line [12] holds more than 1 MiB"),
    ],
    ids=["lacks", "twice", "former", "short", "time", "empty", "quote", "cell", "bytes", "line"],
)
def test_mistakes_of_csv(text: bytes, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(text)
    with little_memory(8 * MIB), pytest.raises(ConfigError, match=sentence) as caught:
        durations(path, "actor")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["x" * 300, "a\0b"], ids=["long", "zero"])
def test_names_that_no_file_can_have(name: str) -> None:
    with pytest.raises(ConfigError, match="is no log of jobs: "):
        load_config(["delays=trace", f"delays.log='{name}'"])


def test_jobs_of_rounds() -> None:
    """Versions that are published while actors roll are known at the end of those that end later."""
    group = Group([Gradient(0, 1, 2, 4, 1.0, 2.0, staleness=1, in_flight=1)], [1.0], 5, 2.0, False, None, 2.5)
    record = Round(7, 4, 1.0, 2, complete=4.0, groups=[group], dropped=[Gradient(0, 0, 1, 2, 1.0, 3.0, in_flight=3)])
    found = list(jobs_of([(record, [Roll(0, 1.0, 2.0), Roll(1, 1.0, 3.0)])], lambda actors: 64 // actors, 16))
    assert found == [
        Job("loader", 3.0, 4.0, batch="7"),
        Job("learner", 1.0, 2.0, "2", 4, 5, 16, "6"),
        Job("learner", 1.0, 3.0, "1", 2, 5, 16),
        Job("actor", 1.0, 2.0, "0", 4, 4, 32, "7"),
        Job("actor", 1.0, 3.0, "1", 4, 6, 32, "7"),
        Job("aggregate", 2.0, 2.5, None, 5, 6, None, "6"),
    ]


def test_traces_with_infinite_seconds(tmp_path: Path) -> None:
    path = tmp_path / trace.NAME
    trace.write(path, Header(0, 1), [RoundTrace(Round(0, 0, 0.0, 1), rolls=[Roll(0, 0.0, float("inf"))])])
    with pytest.raises(ConfigError, match="is no log of jobs: it holds something else than seconds"):
        durations(path, "actor")


# In a configuration ---------------------------------------------------------------------------------------------------


def test_workers_are_counted() -> None:
    for path in EXAMPLES.values():
        config = load_config(["delays=trace", f"delays.log={path}"])
        assert (config.system.learners, config.platform.actors) == (2, 2)
    given = load_config(["delays=trace", f"delays.log={EXAMPLES['csv']}", "system.learners=3", "platform.actors=2"])
    assert given.system.learners == 3
    differing = [sentence for sentence in comparison(given) if "is simulated" in sentence]
    assert differing == [f"{EXAMPLES['csv']} has 2 learners, while system.learners=3 is simulated."]


def test_ids_that_count_no_learners_are_told_of(tmp_path: Path) -> None:
    """Some jobs have none, or one is that of several: learners would compute for more than all of the time."""
    others = [actor(id=0), aggregate(9, 10)]
    some = [learner(0, 10, id="a", version_start=0), learner(0, 10, version_start=0), *others]
    shared = [learner(0, 10, id="a", version_start=0), learner(0, 10, id="a", version_start=0), *others]
    rounded = [learner(0, 10, id="a", version_start=0), learner(9.95, 20, id="a", version_start=0), *others]
    told = []
    for name, rows in (("some", some), ("shared", shared), ("rounded", rounded)):
        log = log_of(tmp_path / f"{name}.jsonl", *rows)
        config = load_config(["delays=trace", f"delays.log={log}"])
        assert (config.system.learners, config.platform.actors) == (1, 1)
        told.append([sentence.removeprefix(f"{log}: ") for sentence in comparison(config)])
    assert [len(sentences) for sentences in told] == [2, 2, 2]
    assert (
        told[0][0]
        == "1 jobs of learners have no id, so system.learners may be too small; system.learners=1 is simulated."
    )
    assert (
        told[1][0] == "jobs of the learner 'a' overlap, so its id is that of several; system.learners=1 is simulated."
    )
    assert "its learners computed" not in " ".join(told[0] + told[1]) and told[2][1].startswith("its learners computed")


def test_jobs_that_take_no_time_are_no_durations(tmp_path: Path) -> None:
    log = log_of(tmp_path / "jobs.jsonl", learner(1, 1), actor(), aggregate(1, 2))
    with pytest.raises(ConfigError, match="has no job of kind learner that takes time; one is needed at least"):
        load_config(["delays=trace", f"delays.log={log}"])


def test_jobs_that_take_no_time_are_told_of(tmp_path: Path) -> None:
    """A log in whole seconds has many of them, and durations without them are too long."""
    log = log_of(tmp_path / "jobs.jsonl", learner(0, 1, id="a"), learner(1, 1, id="a"), actor(id=0), aggregate(1, 2))
    told = [one for one in comparison(load_config(["delays=trace", f"delays.log={log}"])) if "no time" in one]
    assert len(told) == 1 and told[0].startswith(f"{log}: 1 of 2 jobs of kind learner take no time and are left out")


def test_without_ids_the_configuration_counts(tmp_path: Path) -> None:
    rows = [learner(0, 1), actor(), aggregate(1, 2)]
    config = load_config(["delays=trace", f"delays.log={log_of(tmp_path / 'jobs.jsonl', *rows)}"])
    assert (config.system.learners, config.platform.actors) == (8, 128)
    (sentence,) = comparison(config)
    assert re.search(r"has no versions .*, so its staleness is unknown; the simulation foretells .* of \d", sentence)


@pytest.mark.parametrize(
    ("kind", "overrides", "sentence"),
    [
        ("learner", [], "has 200 ids of learners, more than the 8 of platform.gpus times platform.slots_per_gpu; give "
         "system.learners=8 or fewer"),
        ("learner", ["platform=hpc", "prices=hpc", "algorithm.epochs=1", "algorithm.minibatches=4"],
         "has 200 ids of learners, more than the 4 of minibatches at a time"),
        ("actor", [], "has 200 ids of actors, more than the 128 of prices.actor_vms times prices.actor_vm_slots; give "
         "platform.actors=128 or fewer"),
    ],
    ids=["slots", "minibatches", "actors"],
)  # fmt: skip
def test_more_workers_than_there_is_room_for(kind: str, overrides: list[str], sentence: str, tmp_path: Path) -> None:
    rows = [{"kind": kind, "start": 0, "end": 1, "id": number} for number in range(200)]
    others = [{"kind": other, "start": 0, "end": 1} for other in KINDS]
    line = [*overrides, "delays=trace", f"delays.log={log_of(tmp_path / 'jobs.jsonl', *rows, *others)}"]
    with pytest.raises(ConfigError, match=sentence):
        load_config(line)
    assert load_config([*line, "system.learners=2", "platform.actors=2"]).system.learners == 2


def test_only_simulations_are_settled_and_compared() -> None:
    live = load_config(["delays=trace", f"delays.log={EXAMPLES['csv']}", "executor=live"])
    assert live.system.learners == 8 and list(comparison(live)) == []
    assert list(comparison(load_config())) == []


# Commands -------------------------------------------------------------------------------------------------------------


def test_a_timeline_is_compared(tmp_path: Path) -> None:
    done = call(
        "plot.py", "--timeline", 1, "delays=trace", f"delays.log={EXAMPLES['jsonl']}", "--out", tmp_path / "t.png"
    )
    assert done.returncode == 0 and done.stdout == f"{tmp_path / 't.png'}\n"
    assert "the mean staleness when gradients are aggregated was 0.67 (3 gradients)" in done.stderr


@pytest.mark.parametrize("resume", ["", "runs/before"])
def test_a_run_is_compared_when_it_starts(
    resume: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It has said so already where it is resumed."""
    monkeypatch.setattr(run, "train_within", lambda *arguments: {})
    monkeypatch.setattr(run, "run_directory", lambda config: nullcontext(tmp_path))
    config = load_config([*SMALL, "delays=trace", f"delays.log={EXAMPLES['csv']}"])
    run.train(config.replace({"resume": resume}))
    told = capsys.readouterr().out.count("the mean staleness when gradients are aggregated was 0.67 (3 gradients)")
    assert told == (0 if resume else 1)


def test_actors_of_a_simulated_run_are_where_they_were(tmp_path: Path) -> None:
    """Before the data loader begins, and to the nanosecond."""
    log = f"delays.log={EXAMPLES['csv']}"
    config = load_config([*SMALL, "delays=trace", log, "delays.loader={kind: constant, seconds: 0.5, options: {}}"])
    records = [round_record(number + 1) for number in range(3)]
    log_of(tmp_path / "metrics.jsonl", *[{**one, "per_seed": {**one["per_seed"], "actors": [2]}} for one in records])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    export_jobs(tmp_path, MinibatchLayout.of(config), tmp_path / "jobs.csv", rounds=3)
    found = list(read(tmp_path / "jobs.csv"))
    timeline, actors = Timeline.of(config, 0), [job for job in found if job.kind == "actor"]
    rounds = [timeline.next_round() for _ in range(3)]
    passing = 2 * config.platform.cache
    assert [job.end - job.start for job in actors] == pytest.approx([3.1 + passing, 3.4 + passing] * 3)
    assert [job.start for job in actors] == [one.start for one in rounds for _ in range(2)] and actors[0].start == 0.0
    assert [job.end - job.start for job in found if job.kind == "loader"] == pytest.approx([0.5] * 3)
    assert {job.length for job in actors} == {32} and {job.kind for job in found} == {*KINDS}


def test_what_is_written_has_no_numbers_that_json_lacks() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(io.StringIO(), [Job("actor", 0.0, float("nan"))], "jsonl")
