"""Programs for GPUs that are not there: what is counted of them, what the model makes of it, and the real programs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.gpu_model import GPUS, LOW, MIDDLE, steps_per_second
from benchmarks.gpu_thunks import GRADIENT, ROUND, STEP, Counts, counted, parse
from benchmarks.main import main
from benchmarks.process import ROOT
from stellaris_jax.base.errors import ConfigError

SEQUENCE = """\
001: kCopy         [source | next=002 (1)] kCopy
002: kWhile        [prev=001 (1) | next=020 (1)]
condition:
    003: kCustomKernel [source | sink] wrapped_compare grid: [1, 1, 1]
  body:
    000: kCommandBuffer [source | next=006 (1)]
        004: kCustomKernel [source | next=005 (1)] first
        005: kCopy [prev=004 (1) | sink] kCopy
    006: kWhile [prev=000 (1) | next=000 (1)]
condition:
        007: kCustomKernel [source | sink] loop_compare
      body:
        000: kCommandBuffer [source | sink]
            008: kAsyncStart [source | sink] stream=computation_stream[2]
                010: kDynamicSliceFusion [source | sink] params=1
                    009: kCopy [source | sink] kCopy
            011: kAsyncDone [source | sink] async_id=8
            012: kConditional [source | sink]
              false_branch:
                013: kCustomKernel [source | sink] little
              true_branch:
                014: kCustomKernel [source | sink] much
                015: kCustomKernel [source | sink] more
    000: kCommandBuffer [prev=006 (1) | next=017 (1)]
        016: kCustomKernel [source | sink] between
    017: kWhile [prev=000 (1) | sink]
condition:
        018: kCustomKernel [source | sink] loop_compare
      body:
        019: kCustomKernel [source | sink] alone
020: kConditional [prev=002 (1) | sink]
  false_branch:
  true_branch:
    021: kCopy [source | sink] kCopy
"""
METADATA = "".join(
    f'thunk_metadata {{\n  thunk_info {{\n    profile_annotation: "{name}"\n    thunk_id: {number}\n  }}\n}}\n'
    for number, name in ((2, "while.1"), (6, "while.2"), (17, "while.3"))
)
TEXT = """\
HloModule jit__chunk

FileNames
1 "/somewhere/program.py"

FunctionNames
1 "Engine._chunk"
2 "rollout"
3 "loop"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=1 end_column=2}
2 {file_name_id=1 function_name_id=2 line=4 end_line=4 column=1 end_column=2}
3 {file_name_id=1 function_name_id=3 line=5 end_line=5 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=2 parent_frame_id=1}
3 {file_location_id=3 parent_frame_id=1}

%region (x: f32[]) -> f32[] {
  %while.2 = (s32[], f32[4,2]{1,0}) while(%t), condition=%c, body=%b, metadata={op_name="while" stack_frame_id=2}, KNOWN
  ROOT %while.3 = (s32[]) while(%t), condition=%c, body=%b, metadata={op_name="while/while" stack_frame_id=3}
}
ENTRY %main {
  %while.1 = (s32[], f32[8]{0}) while(%t), condition=%c, body=%b, metadata={op_name="while" stack_frame_id=1}
}
""".replace("KNOWN", 'backend_config={"known_trip_count":{"n":"128"}}')


def test_a_dump_is_counted(tmp_path: Path) -> None:
    """Graphs, loops of known and of unknown length, conditionals within and outside of graphs, counted by hand."""
    (tmp_path / "module_0001.jit__chunk.thunk_sequence_after_thunk_passes.txt").write_text(SEQUENCE)
    (tmp_path / "module_0001.jit__chunk.thunk_metadata.txt").write_text(METADATA)
    program = counted(tmp_path, TEXT)
    assert program.own == Counts(3, 3, 1)  # a copy; a conditional's predicate and its one copy
    step, gradient, round_ = (program.find(name) for name in (STEP, GRADIENT, ROUND))
    assert step is not None and gradient is not None and round_ is not None
    assert (step.turns, gradient.turns, round_.turns) == (128, None, None)
    assert step.own == Counts(4, 1, 0)  # one graph: a slice, and a conditional of two kernels at most
    assert gradient.own == Counts(3, 3, 1)  # a kernel; its loop's condition, which the host reads
    assert round_.own == Counts(3 + 2, 2 + 2, 1)
    lengths = {ROUND: 10, GRADIENT: 32.0}
    a_round = Counts(5 + 128 * 4 + 32 * 3, 4 + 128 + 32 * 3, 1 + 32)
    assert program.whole(lengths) == Counts(3, 3, 1) + a_round.times(10)
    assert program.find("nothing") is None


def test_sections_belong_to_their_loops() -> None:
    """The condition's title is not indented, and what follows an inner loop is in the outer one's body."""
    outer = parse(SEQUENCE.splitlines())[1]
    assert [(thunk.number, thunk.section) for thunk in outer.within] == [
        *((3, "condition"), (0, "body"), (6, "body"), (0, "body"), (17, "body"))
    ]


def test_a_dump_without_a_program_says_so(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="thunk_sequence"):
        counted(tmp_path, TEXT)


def test_the_model_is_in_order_and_scales() -> None:
    counts = Counts(1000, 100, 10)
    assert MIDDLE.of(counts) == pytest.approx(1000 * 1.4 + 100 * 7 + 10 * 13)
    likely, lowest, highest = steps_per_second(GPUS["h100"], counts, 1e4)
    assert lowest < likely < highest == pytest.approx(1e4 / (1e-6 * LOW.of(counts)))
    assert steps_per_second(GPUS["v100"], counts, 1e4)[0] == pytest.approx(likely / 1.25)


def test_what_is_missing_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError, match="has no folder cuda13; `make gpu-check` installs it"):
        gpu.measure(["cartpole"], ["h100"], tmp_path, print)
    with pytest.raises(SystemExit):
        main(["gpu", "cartpole", "--gpu", "b200"])
    assert "h100" in capsys.readouterr().err


# The real programs ----------------------------------------------------------------------------------------------------

PLUGINS = Path(os.environ.get("STELLARIS_GPU_PLUGINS", ROOT / ".gpu-check"))
BOUNDS = {
    ("cartpole", "h100"): (60, 0.1, 16),
    ("cartpole", "v100"): (66, 0.1, 18),
    ("breakout", "h100"): (75, 0.1, 40),
}
"""Most kernels and waits of a gradient, and most kernels of an env step."""


@pytest.mark.parametrize(("job", "card"), BOUNDS)
def test_programs_for_gpus_stay_small(job: str, card: str) -> None:
    """Kernels and waits by which the programs are bound; both generations compile."""
    if not (PLUGINS / GPUS[card].plugin).exists():
        pytest.skip("needs `make gpu-check`")
    (found,) = gpu.measure([job], [card], PLUGINS, print)
    kernels, waits, of_a_step = BOUNDS[job, card]
    assert found[GRADIENT]["kernels"] <= kernels and found[GRADIENT]["waits"] <= waits
    assert found[STEP]["kernels"] <= of_a_step and found[STEP]["waits"] <= waits
