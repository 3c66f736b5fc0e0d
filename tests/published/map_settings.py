"""Numbers of the map on other settings: reuse of data, 64 learners, fractional steps, stale data."""

from __future__ import annotations

from functools import partial

import numpy as np

from published.case import Case
from published.map_runs import GATE, areas, areas_on_stale_data, areas_over_rates, areas_with
from published.statistics import Difference, paired, welch
from published.texts import decimal, gain, loss, plus_minus, row, span

FRONT, PAGE = "README.md", "results/map/README.md"
ENDS = ("", ", fractional")
BEHIND = ("TIS", "CISPO", "SAPO")


def beside_async(variation: str, method: str) -> str:
    """How far a method is ahead of async with 8 learners and one thing changed."""
    return gain(welch(areas_with(variation, method), areas_with(variation, "async")))


def crowd(method: str) -> np.ndarray:
    return areas("cartpole", method, 64, "32 minibatches")


def fractional(method: str, learners: int) -> str:
    """Areas with fractional steps and without."""
    pair = areas("cartpole", f"{method}, fractional", learners), areas("cartpole", method, learners)
    return " against ".join(plus_minus(each) for each in pair)


def fractional_gain(method: str, learners: int) -> str:
    return gain(paired(areas("cartpole", f"{method}, fractional", learners), areas("cartpole", method, learners)))


def old_data(method: str, age: int) -> Difference:
    """How far a method is ahead of PPO on data up to so many updates old."""
    return welch(areas_on_stale_data(method, age), areas_on_stale_data("PPO", age))


def stale_data(middle: str) -> str:
    """Areas from data up to 32, 128 and 256 updates old; the last with its interval."""
    at_32, at_128 = (decimal(areas_on_stale_data("PPO", age).mean()) for age in (32, 128))
    return middle.format(at_32, at_128, plus_minus(areas_on_stale_data("PPO", 256)))


def ahead_on_acrobot(method: str) -> str:
    """How far a method is ahead of plain async on Acrobot, if actors run ahead."""
    ours, theirs = (areas_with("pipelined actors", each, "acrobot") for each in (method, "async"))
    return f"{method} ({gain(welch(ours, theirs))})"


def at_256(form: str) -> str:
    """M2PO on data up to 256 updates old, and how far it is ahead of PPO."""
    return form.format(plus_minus(areas_on_stale_data("M2PO", 256)), gain(old_data("M2PO", 256)))


VARIATIONS = [
    Case(PAGE, "| 8 epochs (", "plain async falls to 0.38 ± 0.15",
         lambda: f"plain async falls to {plus_minus(areas_with('8 epochs', 'async'))}"),
    Case(PAGE, "- *All-reduce* is best of all", "8 epochs (0.92 ± 0.02) and with 32 minibatches (0.94 ± 0.02)",
         lambda: "8 epochs ({}) and with 32 minibatches ({})".format(
             *(plus_minus(areas_with(each, "all-reduce")) for each in ("8 epochs", "32 minibatches")))),
    Case(PAGE, "- *All-reduce* is best of all", "one epoch (0.42 ± 0.09)",
         lambda: f"one epoch ({plus_minus(areas_with('1 epoch', 'all-reduce'))})"),
    *(Case(PAGE, "- *On Acrobot nothing survives.*", printed, partial(ahead_on_acrobot, method))
      for method, printed in (
          ("KL gate", "KL gate (+0.28 ± 0.18)"), ("softsync", "softsync (+0.24 ± 0.19)"),
          ("Stellaris", "Stellaris (+0.21 ± 0.19)"))),
    Case(PAGE, "- *On Acrobot nothing survives.*", "falls to 0.44 ± 0.18",
         lambda: f"falls to {plus_minus(areas_with('pipelined actors', 'async', 'acrobot'))}"),
    Case(PAGE, "- *Weights on Acrobot*", "0.74 ± 0.17 with 8 epochs",
         lambda: f"{plus_minus(areas_with('8 epochs', 'async', 'acrobot'))} with 8 epochs"),
    Case(PAGE, "| 8 epochs (", "+0.43 ± 0.16", partial(beside_async, "8 epochs", "softsync")),
    Case(PAGE, "| 8 epochs (", "+0.34 ± 0.16", partial(beside_async, "8 epochs", "w")),
    Case(PAGE, "| 32 minibatches |", "+0.19 ± 0.10", partial(beside_async, "32 minibatches", "softsync")),
    Case(PAGE, "| one epoch |", "−0.20 ± 0.08", partial(beside_async, "1 epoch", "softsync")),
    Case(PAGE, "| one epoch |", "−0.16 ± 0.08", partial(beside_async, "1 epoch", "Stellaris")),
    Case(PAGE, "| 2 minibatches |", "−0.21 ± 0.12", partial(beside_async, "2 minibatches", "softsync")),
    Case(PAGE, "| actors that run ahead", "+0.23 ± 0.07", partial(beside_async, "pipelined actors", "softsync")),
    Case(PAGE, "| actors that run ahead", "+0.22 ± 0.06", partial(beside_async, "pipelined actors", "Stellaris")),
    Case(PAGE, "| actors that run ahead", "+0.13 ± 0.05", partial(beside_async, "pipelined actors", "w")),
]  # fmt: skip

CROWD = [
    Case(PAGE, "at a mean staleness of 63", "0.86 ± 0.03 against 0.81 ± 0.02: +0.04 ± 0.03",
         lambda: f"{plus_minus(crowd('KL gate'))} against {plus_minus(crowd('async'))}: "
                 f"{gain(welch(crowd('KL gate'), crowd('async')))}"),
    Case(PAGE, "at a mean staleness of 63", "One learner learns 0.94 ± 0.02",
         lambda: f"One learner learns {plus_minus(areas('cartpole', 'all-reduce', 1, '32 minibatches'))}"),
    Case(PAGE, "at a mean staleness of 63", "all-reduce (0.59 ± 0.09) and softsync (0.57 ± 0.13)",
         lambda: " and ".join(f"{name} ({plus_minus(crowd(name))})" for name in ("all-reduce", "softsync"))),
]  # fmt: skip

FRACTIONS = [
    Case(PAGE, "| Stellaris | 0.81 ± 0.05 against", "0.81 ± 0.05 against 0.82 ± 0.04 | 0.53 ± 0.12 against 0.62 ± 0.10",
         lambda: row(*(fractional("Stellaris", number) for number in (8, 32)))),
    Case(PAGE, "| KL gate | 0.78", "0.78 ± 0.05 against 0.77 ± 0.06 | 0.78 ± 0.06 against 0.75 ± 0.06",
         lambda: row(*(fractional("KL gate", number) for number in (8, 32)))),
    Case(PAGE, "| weights by staleness alone |", "+0.13 ± 0.10", partial(fractional_gain, "w", 8)),
    Case(PAGE, "| weights by staleness alone |", "−0.21 ± 0.07", partial(fractional_gain, "w", 32)),
    Case(PAGE, "differences are paired by seed", "loses 0.10 ± 0.07 with 32 learners",
         lambda: f"loses {loss(paired(*(areas_over_rates('cartpole', GATE + end, 32) for end in ENDS)))} "
                 "with 32 learners"),
]  # fmt: skip

STALE_DATA = [
    Case(FRONT, "How stale may data be?", "up to 32 updates old 0.92, up to 128 0.66, up to 256 0.35 ± 0.02",
         partial(stale_data, "up to 32 updates old {}, up to 128 {}, up to 256 {}")),
    Case(FRONT, "How stale may data be?", "(up to 4: 1.00)",
         lambda: f"(up to 4: {decimal(areas_on_stale_data('PPO', 4).mean())})"),
    Case(PAGE, "**PPO keeps", "0.92 of 1.00 with data up to 32 updates old, 0.66 at 128 and 0.35 ± 0.02 at 256",
         partial(stale_data, "{} of 1.00 with data up to 32 updates old, {} at 128 and {} at 256")),
    Case(PAGE, "| DPPO's mask |", "0.75 ± 0.03, +0.08 ± 0.04",
         lambda: f"{plus_minus(areas_on_stale_data('DPPO', 128))}, {gain(old_data('DPPO', 128))}"),
    Case(PAGE, "| TIS, CISPO, SAPO,", "behind by 0.26 to 0.38",
         lambda: "behind by " + span(-old_data(method, 128).mean for method in BEHIND)),
    Case(PAGE, "| M2PO's clip |", "+0.06 ± 0.05", lambda: gain(old_data("M2PO", 128))),
    *(Case(PAGE, near, printed, partial(at_256, form)) for near, printed, form in (
        ("| M2PO's clip |", "0.54 ± 0.03, +0.19 ± 0.03", "{}, {}"),
        ("**PPO keeps", "M2PO's clip keeps 0.54 ± 0.03", "M2PO's clip keeps {}"))),
    Case(FRONT, "How stale may data be?", "M2PO's clip has 0.54 ± 0.03 at 256",
         partial(at_256, "M2PO's clip has {} at 256")),
    Case(PAGE, "| A-3PO, decoupled PPO |", "+0.05 ± 0.03 (survives), +0.06 ± 0.04",
         lambda: f"{gain(old_data('A-3PO', 128))} (survives), {gain(old_data('decoupled', 128))}"),
    Case(PAGE, "| A-3PO, decoupled PPO |", "+0.07 ± 0.06", lambda: gain(old_data("A-3PO", 256))),
    Case(PAGE, "| steps scaled by the effective", "−0.12 ± 0.10", lambda: gain(old_data("ESS", 128))),
    Case(PAGE, "*DPPO's mask* and *M2PO's clip*", "0.92 ± 0.04 and 0.92 ± 0.03",
         lambda: " and ".join(plus_minus(areas_on_stale_data(each, 4)) for each in ("DPPO", "M2PO"))),
    Case(PAGE, "*M2PO's equality*", "0.54 ± 0.03 against 1.00",
         lambda: f"{plus_minus(areas_on_stale_data('M2PO', 256))} "
                 f"against {decimal(areas_on_stale_data('PPO', 4).mean())}"),
]  # fmt: skip

CASES = [*VARIATIONS, *CROWD, *FRACTIONS, *STALE_DATA]
