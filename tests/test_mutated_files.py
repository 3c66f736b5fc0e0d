"""JSON of runs with any value changed: every reader has a result, or says in a sentence that it has not."""

from __future__ import annotations

import io
import json
import shutil
import traceback
from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from mutations import mutations
from run_dirs import lived, make_run
from sweeps import SMALL

from stellaris_jax import Config, load_config
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.cli import runs
from stellaris_jax.config.schema import flatten
from stellaris_jax.config.stored import from_yaml, read_yaml, to_yaml
from stellaris_jax.config.trust import admit
from stellaris_jax.engine.spec import ProgramSpec
from stellaris_jax.execute.loading import checked
from stellaris_jax.execute.recording import Outline
from stellaris_jax.execute.run import train
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.report import curves, perfetto
from stellaris_jax.report.page import charts, panels
from stellaris_jax.report.page.page import write_page
from stellaris_jax.runs.run_store import find, removable_runs
from stellaris_jax.telemetry.integrity import KEY, checked_line, digest_of, run_identity, verified_line, with_digests
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.trace import Header, RoundTrace, Trace


def complaint(label: str, read: Callable[[], Any]) -> list[str]:
    """Errors of a reader that are not the package's own, or not in one line."""
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            read()
    except (ConfigError, RunError) as error:
        return [f"{label}: {error}"] if "\n" in str(error) else []
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        return [f"{label}: {type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"]
    return []


# Traces ---------------------------------------------------------------------------------------------------------------


def test_rounds_of_changed_traces_are_whole_or_refused() -> None:
    config, line, errors, refused = load_config(["system.learners=3"]), lived().line(), list[str](), 0
    for label, document in [("nothing", json.loads(line)), *mutations(json.loads(line))]:
        try:
            one = RoundTrace.of(json.dumps(document))
        except trace.DAMAGE:  # it is refused, or the trace ends before it
            refused += 1
            continue
        errors += complaint(label, lambda one=one: used(one, config))  # type: ignore[misc]
    assert errors == []
    assert refused > 400


def used(one: RoundTrace, config: Config) -> None:
    """Uses of a round by timelines and replays."""
    Outline.of(Trace(Header(0, 4), [one]))  # type: ignore[arg-type]
    for event in perfetto.events(config, [perfetto.TimelineRound(one.record, one.rolls, one.failures)]):
        json.dumps(event, allow_nan=False)
    for version in one.versions:
        version.deviation(np.arange(4.0))


def test_changed_headers_are_refused(tmp_path: Path) -> None:
    header, path = Header(seed=0, parameters=4)._asdict(), tmp_path / trace.NAME
    accepted = []
    for label, document in mutations(header):
        with path.open("wb") as file:
            trace._pack(file, [json.dumps(document), lived().line()])
        assert complaint(label, lambda: list(trace.read(path).rounds)) == []
        with suppress(ConfigError, RunError):
            list(trace.read(path).rounds)
            accepted.append(label)
    assert accepted == ["projections gone", "format gone"], "these have defaults"


def test_the_round_and_the_value_are_named(tmp_path: Path) -> None:
    line = json.loads(lived().line())
    line["rolls"][0]["start"] = None
    with (tmp_path / trace.NAME).open("wb") as file:
        trace._pack(file, map(json.dumps, [Header(0, 4)._asdict(), line]))
    with pytest.raises(ConfigError, match="round 1 is not as a run writes it: start is null; put the file back"):
        list(trace.read(tmp_path / trace.NAME).rounds)


def test_a_replay_needs_the_weights_of_the_penalty(tmp_path: Path) -> None:
    config = load_config([*SMALL, "algorithm.kl_coefficient=0.2"])
    (tmp_path / "config.yaml").write_text(to_yaml(config))
    one = lived()
    one.record.groups[0].gradients[0].kl_coefficient = None
    trace.write(tmp_path / trace.NAME, Header(0, 4), [one])
    few = {"executor": "replay", "trace": str(tmp_path), "total_steps": 64}
    with pytest.raises(ConfigError, match="has gradients without kl_coefficient"):
        Trainer(config.replace(few))


def test_a_whole_round_is_read_as_it_was_written() -> None:
    one = lived()
    assert RoundTrace.of(one.line()) == one
    assert RoundTrace.of(replace(one, opened=True).line()).opened


# Metrics and summaries ------------------------------------------------------------------------------------------------


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are made, but not painted."""
    for module in (panels, charts):
        monkeypatch.setattr(module, "svg", lambda figure, name: "<svg></svg>")
    monkeypatch.setattr(curves, "save", lambda figure, path: path)


def complaints(run: Path, label: str) -> list[str]:
    """Errors of all readers of a run that must not be."""
    readers: dict[str, Callable[[], Any]] = {
        "runs": lambda: runs.main.__wrapped__([str(run.parent), "--sort", "return"]),
        "prune": lambda: removable_runs(find([run.parent])),
        "plot": lambda: curves.plot_run(run, run.parent / "plot.png"),
        "report": lambda: write_page([run], run.parent / "page.html"),
    }
    return [error for name, read in readers.items() for error in complaint(f"{name}, {label}", read)]


def every(step: int, items: Iterable[tuple[str, Any]]) -> list[tuple[str, Any]]:
    """One of so many, at least three."""
    chosen = list(items)[step // 2 :: step]
    assert len(chosen) > 2
    return chosen


def test_readers_of_runs_of_earlier_versions(tmp_path: Path, undrawn: None) -> None:
    """Nothing tells that their files were changed."""
    run = make_run(tmp_path / "runs" / "run", returns=[1.0, 2.0], rounds=4, evaluations=2)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((run / "summary.json").read_text())
    errors = complaints(run, "sound")
    for place in (1, 2):
        for label, line in every(40, mutations(lines[place])):
            changed = [line if index == place else one for index, one in enumerate(lines)]
            (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in changed))
            errors += complaints(run, f"{lines[place]['kind']} {label}")
    (run / "metrics.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in lines))
    for label, document in every(10, mutations(summary)):
        (run / "summary.json").write_text(json.dumps(document))
        errors += complaints(run, f"summary {label}")
    assert errors == []


def test_readers_of_runs_that_were_sealed_anew(tmp_path: Path, undrawn: None) -> None:
    run = tmp_path / "runs" / "run"
    train(load_config([*SMALL, f"run.dir={run}"]))
    shutil.rmtree(run / "checkpoints")
    flat = flatten(read_yaml(run / "config.yaml"))
    lines = [verified_line(line) for line in (run / "metrics.jsonl").read_bytes().splitlines()]
    records = [json.loads(line.text) for line in lines if line is not None]
    summary = json.loads((run / "summary.json").read_text())
    del summary[KEY]

    def write(records: list[Any], summary: Any) -> None:
        numbered = enumerate(map(json.dumps, records), start=1)
        (run / "metrics.jsonl").write_text("".join(checked_line(text, n, run_identity(flat)) for n, text in numbered))
        (run / "summary.json").write_text(json.dumps(with_digests(summary, digest_of(run / "metrics.jsonl"), flat)))

    errors = list[str]()
    for place in (1, 2):
        for label, record in every(50, mutations(records[place])):
            write([record if index == place else one for index, one in enumerate(records)], summary)
            errors += complaints(run, f"{records[place]['kind']} {label}")
    for label, document in every(25, mutations(summary)):
        write(records, document)
        errors += complaints(run, f"summary {label}")
    assert errors == []


# Configurations -------------------------------------------------------------------------------------------------------


def test_changed_configurations_are_read_or_refused(tmp_path: Path) -> None:
    """Evaluations, exports, replays and resumed runs read a configuration first."""
    path, errors = tmp_path / "config.yaml", list[str]()
    document = yaml.safe_load(to_yaml(load_config([*SMALL, f"run.dir={tmp_path}"])))
    for label, changed in every(13, mutations(document)):
        path.write_text(yaml.safe_dump(changed))
        errors += complaint(label, lambda: ProgramSpec.of(checked(admit(from_yaml(path), path, trust=False))))
    assert errors == []
