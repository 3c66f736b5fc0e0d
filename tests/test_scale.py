"""The benchmark `scale`: sizes that are configurations, processes of their own, plots, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from benchmarks import main, scale
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.loading import check_and_start_jax, load_config


@pytest.mark.parametrize("axis", scale.AXES)
def test_every_size_is_a_configuration(axis: str) -> None:
    configs = [load_config(scale.overrides(axis, size)) for size in scale.AXES[axis].sizes]
    for config in configs:
        check_and_start_jax(config)
    assert len({*configs}) == len(configs)
    assert configs[0].env.name == "gymnax/CartPole-v1"


def test_a_size_is_measured_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, out = tmp_path / "scale.json", tmp_path / "plots"
    command = ["scale", "--axes", "ring", "--most", "2", "--repeats", "1", "--out", str(out), "--json", str(file)]
    main.main(command)
    (row,) = json.loads(file.read_text())["result"]
    assert (row["axis"], row["size"], row["per"], row["chunks"]) == ("ring", 2, "gradient", 1)
    assert row["microseconds"] > 0 and row["peak_memory_mb"] > 50
    assert [path.name for path in out.iterdir()] == ["ring.png"]
    assert "ring" in capsys.readouterr().out


def measured(monkeypatch: pytest.MonkeyPatch, refused: int | None = None) -> None:
    """Figures without a process; those of one size are refused."""

    def instead(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
        size = int(command[4])
        if size == refused:
            raise ConfigError("This takes 9 GiB of memory at least, and there are 8 GiB.")
        return {"microseconds": 100.0 / size, "peak_memory_mb": 400.0 + size, "compile_seconds": 1.0, "chunks": 1}

    monkeypatch.setattr(scale, "figures", instead)


@pytest.mark.parametrize("axis", scale.AXES)
def test_every_axis_has_a_plot(axis: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch)
    table = scale.scale([axis], None, 1, tmp_path, print)
    assert [row["size"] for row in table] == list(scale.AXES[axis].sizes)
    with Image.open(tmp_path / f"{axis}.png") as picture:
        assert len({*picture.convert("RGB").get_flattened_data()}) > 10


def test_what_does_not_fit_is_said_and_the_rest_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = scale.AXES["width"].sizes[-1]
    measured(monkeypatch, refused=largest)
    notes: list[str] = []
    *others, last = scale.scale(["width"], None, 1, tmp_path, notes.append)
    assert "9 GiB" in last["refused"] and "9 GiB" in notes[-1] and "microseconds" not in last
    assert others and all("refused" not in row for row in others)
    assert scale.rows([last])[0]["refused"] == last["refused"]
    assert (tmp_path / "width.png").is_file()


def test_nothing_is_drawn_of_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(monkeypatch, refused=1)
    scale.scale(["members"], 1, 1, tmp_path, print)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["scale", "--axes", "depth"], "invalid choice: 'depth'"),
        (["scale", "--most", "0"], "--most: must be an integer of at least 1, not '0'"),
        (["scale", "--axes", "ring", "width", "--most", "8"], "--most=8 leaves nothing of axis width"),
        (["scale", "--out", "/dev/null/plots"], "--out=/dev/null/plots cannot be written"),
        (["limit", "--jobs", "pong"], "invalid choice: 'pong'"),
        (["limit", "--json", "/dev/null/limit.json"], "--json=/dev/null/limit.json cannot be written"),
    ],
)
def test_mistakes_end_in_one_line(
    arguments: list[str], part: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scale, "figures", lambda *_: pytest.fail("something was measured"))
    with pytest.raises(SystemExit) as stop:
        main.main(arguments)
    shown = capsys.readouterr()
    assert stop.value.code == 2
    assert shown.err.startswith("error: ") and shown.err.count("\n") == 1 and part in shown.err
