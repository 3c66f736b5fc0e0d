"""Files of a run that were damaged: what can be read is read, the rest is told of in a line."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from telemetry import evaluation_record, open_telemetry, round_record, rounds_in

from stellaris_jax.report.runs import read_run
from stellaris_jax.telemetry.jsonl import read_rows

GOOD = [json.dumps(round_record(number)) for number in (1, 2, 3)]


@pytest.mark.parametrize(
    "damaged",
    [
        "",
        '{"kind":"round","round":2,"env_',
        "[" * 100_000,
        "7",
        '{"round":2,"env_steps":4096,"per_seed":{"train_return":[1.0]}}',
        GOOD[1].replace('"kind": "round"', '"kind": "roune"'),
        GOOD[1].replace('"round": 2', '"round": "2"'),
        GOOD[1].replace('"train_return": [', '"train_retusn": ['),
        GOOD[1].replace('"env_steps"', '"env_stepr"'),
        GOOD[1].replace("{", "\x00"),
    ],
)
def test_a_damaged_line_is_left_out_and_told_of(damaged: str, tmp_path: Path) -> None:
    path, notes = tmp_path / "metrics.jsonl", []
    path.write_text("\n".join([GOOD[0], damaged, GOOD[2]]) + "\n")
    assert [record["round"] for record in read_rows(path, notes.append)] == [1, 3]
    assert notes == [f"{path}: line 2 is damaged and left out"]


def test_many_damaged_lines_are_one_message(tmp_path: Path) -> None:
    path, notes = tmp_path / "metrics.jsonl", []
    path.write_bytes(b"\xff\n" + GOOD[0].encode() + b"\n" + b"\xfe\n\xfd\n" + b'{"torn":')
    assert [record["round"] for record in read_rows(path, notes.append)] == [1]
    assert notes == [f"{path}: 3 lines are damaged and left out, the first of them line 1"]


def test_a_resumed_run_writes_json_again_whatever_it_had_read(tmp_path: Path) -> None:
    """Infinity is none, though Python reads it."""
    record = json.dumps(round_record(1, policy_loss=math.inf, grad_norm="?")).replace('"?"', "1e999")
    (tmp_path / "metrics.jsonl").write_text(f"{record}\n{json.dumps(evaluation_record(1))}\n")
    telemetry, _ = open_telemetry(tmp_path, resume_round=1)
    telemetry.close()
    assert [kept["round"] for kept in telemetry.evaluations] == [1] and rounds_in(tmp_path) == [1, 1]
    assert "Infinity" not in (tmp_path / "metrics.jsonl").read_text()


@pytest.mark.parametrize("file", ["config.yaml", "summary.json"])
@pytest.mark.parametrize("content", [b"\x89PNG\xff\xfe", b"{", b"- 1", b"a: &a [*a]", b"[" * 100_000, b"a: *b"])
def test_a_damaged_file_is_left_out_and_told_of(file: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text("\n".join(GOOD) + "\n")
    (tmp_path / file).write_bytes(content)
    notes: list[str] = []
    run = read_run(tmp_path, notes.append)
    assert len(run.rounds) == 3 and (run.config, run.summary) == ({}, None)
    assert notes == [f"{tmp_path / file} is damaged and left out"]
