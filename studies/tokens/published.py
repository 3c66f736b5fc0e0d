"""Published claims on stale completions, tested on addition or on lines of a heavy tail.

Each is as close to its source as these tasks allow: one update per batch, a transformer of 100,000 parameters, exact
ages, every method at its own best learning rate. A claim of equality holds if the interval of the difference lies
within `MARGIN`, which was fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stellaris_jax.base.statistics import paired
from studies.choices import area, area_of_equal_seconds, values
from studies.claims import Claim, equal, more
from studies.outcomes import Outcome, outcomes
from studies.study import Study
from studies.tokens import cells
from studies.tokens.cells import A3PO, CISPO, CLIP, DAPO, DECOUPLED, DPPO, GSPO, ICEPOP, M2PO, NONE, TIS, VCPO, Cell
from studies.tokens.judged import Judged
from studies.tokens.measures import MARGIN


class Side(NamedTuple):
    """Method at an age, with the precision of its actors."""

    method: str
    level: int
    precision: str = ""


class Published(NamedTuple):
    """Claim of a paper or a thread.

    Attributes:
      source: where it is made.
      text: what is claimed, in the terms of this study.
      ours: side that is said to learn more, or as much.
      theirs: side that it is compared with.
      equal: whether both are said to learn as much.
    """

    source: str
    text: str
    ours: Side
    theirs: Side
    equal: bool = False


PUBLISHED = (
    Published("A-3PO", "64 updates old, A-3PO learns as much as decoupled PPO",
              Side(A3PO, 64), Side(DECOUPLED, 64), equal=True),
    Published("M2PO", "M2PO learns as much from completions 256 updates old as PPO's clip from fresh ones",
              Side(M2PO, 256), Side(CLIP, 0), equal=True),
    Published("M2PO", "256 updates old, M2PO learns more than PPO's clip", Side(M2PO, 256), Side(CLIP, 256)),
    Published("VCPO", "64 updates old, VCPO learns more than importance ratios capped alone", Side(VCPO, 64),
              Side(TIS, 64)),
    Published("VCPO", "VCPO learns as much from completions 64 updates old as from fresh ones",
              Side(VCPO, 64), Side(VCPO, 0), equal=True),
    Published("GSPO", "8 updates old, GSPO learns more than GRPO", Side(GSPO, 8), Side(CLIP, 8)),
    Published("MiniMax-M1", "8 updates old, CISPO learns more than DAPO", Side(CISPO, 8), Side(DAPO, 8)),
    Published("DAPO", "8 updates old, a higher upper clip learns more than a symmetric one",
              Side(DAPO, 8), Side(CLIP, 8)),
    Published("DPPO", "8 updates old, a trust region of total variation learns more than PPO's clip",
              Side(DPPO, 8), Side(CLIP, 8)),
    Published("Yao et al.", "fresh completions of int8 actors: TIS learns more than no correction",
              Side(TIS, 0, "int8"), Side(NONE, 0, "int8")),
    Published("Yao et al.", "fresh completions without a mismatch: TIS learns as much as no correction",
              Side(TIS, 0), Side(NONE, 0), equal=True),
    Published("Ring-1T", "fresh completions of int8 actors: IcePop learns more than TIS",
              Side(ICEPOP, 0, "int8"), Side(TIS, 0, "int8")),
)  # fmt: skip


def claims(study: Study, judged: Judged) -> list[Claim]:
    """All published claims; also writes the table of their differences."""
    made, rows = [], []
    for one in PUBLISHED:
        ours, theirs = (_areas(judged, side) for side in (one.ours, one.theirs))
        claim = (
            equal(f"{one.text} (paired)", one.source, ours, theirs, MARGIN, test=paired)
            if one.equal
            else more(f"{one.text} (paired)", one.source, ours, theirs, test=paired)
        )
        made.append(claim)
    made += [_areal(study), _unclipped(study, judged), _rates(judged), _blocking(judged), _in_flight(judged)]
    for claim in made:
        rows.append([claim.paper, claim.claim, claim.ours, claim.verdict])
    study.table("published", ("source", "claim", "here", "verdict"), rows)
    return made


def _areas(judged: Judged, side: Side) -> list[float]:
    if side.precision:
        runs = judged.at(cells.MISMATCH, cells.ADDITION, f"{side.method}, {side.precision}", side.level)
    else:
        runs = judged.at(cells.METHOD, cells.ADDITION, side.method, side.level)
    return values(runs, area)


def _areal(study: Study) -> Claim:
    """AReaL's method, with a proximal policy of the training step, at an age of 16 steps of 4 updates."""
    level, rate = 64, cells.RENEWAL_RATE
    both = [Cell(cells.RENEWAL, cells.ADDITION, method, level, rate) for method in (f"{DECOUPLED} at 4", CLIP)]
    runs = outcomes(both, cells.JUDGING, study)
    ours, theirs = (values(runs[cell], area) for cell in both)
    text = "64 updates old, decoupled PPO that is renewed every 4 updates learns more than PPO's clip (paired)"
    return more(text, "AReaL", ours, theirs, test=paired)


def _unclipped(study: Study, judged: Judged) -> Claim:
    fresh = judged.at(cells.METHOD, cells.ADDITION, NONE, 0)
    late = Cell(cells.METHOD, cells.ADDITION, NONE, 8, fresh[0].cell.rate)
    runs: Sequence[Outcome] = outcomes([late], cells.JUDGING, study)[late]
    text = "a loss without clip loses on completions 8 updates old, at the rate that is best on fresh ones (paired)"
    return more(text, "tinker-cookbook#822", values(fresh, area), values(runs, area), test=paired)


def _rates(judged: Judged) -> Claim:
    def logarithms(level: int) -> np.ndarray:
        runs = [judged.at(cells.METHOD, cells.ADDITION, name, level) for name in cells.METHODS]
        return np.log10([float(one[0].cell.rate) for one in runs])

    text = "the best learning rate is lower on completions 64 updates old than on fresh ones"
    return more(
        f"{text}, in powers of ten, over methods (paired)",
        "arXiv 2607.01083",
        logarithms(0),
        logarithms(64),
        test=paired,
    )


def _blocking(judged: Judged) -> Claim:
    wait, drop = (
        values(judged.at(cells.ADMISSION, cells.TAIL, f"{CLIP}, {name}", 1), area) for name in (cells.WAIT, cells.DROP)
    )
    text = "PPO's clip learns as much per update if too old completions are waited for as if they are dropped (paired)"
    return equal(text, "tinker-cookbook#822", wait, drop, MARGIN, test=paired)


def _in_flight(judged: Judged) -> Claim:
    ours, theirs = (
        judged.at(cells.FLIGHT, cells.TAIL, f"{CLIP}, {name}", 4) for name in (cells.IN_FLIGHT, cells.WHOLE)
    )
    seconds = area_of_equal_seconds({ours[0].cell: ours, theirs[0].cell: theirs})
    text = "in-flight updates learn more than whole completions in as many seconds (paired)"
    return more(text, "PipelineRL", values(ours, seconds), values(theirs, seconds), test=paired)
