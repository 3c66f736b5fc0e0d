"""Numbers of the page on the paper Stellaris."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

import numpy as np

from published.case import Case
from published.files import numbers, table
from published.paper_runs import TASKS, Runs, final, final_for_equal, runs, series, total
from published.statistics import welch
from published.texts import gain, loss, plus_minus, row, significant_span, span

FINDINGS, STELLARIS = "results/README.md", "results/stellaris/README.md"
BASELINES = {"6": "PPO", "7": "IMPACT", "9": "RLlib", "10": "MinionsRL"}
"""Baselines of the figures of the Stellaris paper."""
SETTINGS = {"": "the paper's rate", ", tuned": "tuned rates", ", a target a round": "a target a round"}
"""Endings of the names of series, and their names in claims."""


class Ends(NamedTuple):
    """Final returns with Stellaris and of its baseline, and the quotient of the paper's two."""

    ours: list[float]
    baseline: list[float]
    papers: float

    @property
    def verdict(self) -> str:
        return welch(self.ours, self.baseline).verdict

    @property
    def excludes(self) -> bool:
        """Whether the paper's quotient is shown not to be ours."""
        return welch(self.ours, np.multiply(self.papers, self.baseline)).verdict != "not shown"


def stellaris(figure: str, task: str, which: str) -> Runs:
    return runs(f"stellaris/figure_{figure}", task, which)


@functools.cache
def all_ends() -> list[Ends]:
    """Comparisons of final returns in Figures 6, 7, 9 and 10 of the Stellaris paper, of its own systems."""
    found = []
    for figure, baseline in BASELINES.items():
        papers = {line["claim"]: line["paper"] for line in table(f"stellaris/claims_{figure}.csv")}
        for task, which in series(f"stellaris/figure_{figure}"):
            name, _, ending = which.partition(" + Stellaris")
            if which.startswith(f"{baseline} + Stellaris") and "pipelined" not in ending:
                claim = f"{name} on {task}, {SETTINGS[ending]}: Stellaris ends higher"
                ours, theirs = map(float, papers[claim].split(" against "))
                runs_of_both = stellaris(figure, task, which), stellaris(figure, task, name + ending)
                found.append(Ends(final(runs_of_both[0]), final(runs_of_both[1]), ours / theirs))
    return found


def different_ends() -> list[Ends]:
    """Comparisons whose returns no one before has."""
    return [each for i, each in enumerate(all_ends()) if each[:2] not in [before[:2] for before in all_ends()[:i]]]


def lower(comparisons: list[Ends]) -> int:
    return sum(each.verdict == "reversed" for each in comparisons)


def higher() -> str:
    number = sum(each.verdict == "holds" for each in all_ends())
    return f"{number or 'none'} of {len(all_ends())} comparisons"


def quotients(ending: str, names: Iterable[str] = BASELINES.values()) -> str:
    """Mean seconds of baselines, over those of Stellaris."""
    found = []
    for figure, baseline in BASELINES.items():
        for task, which in series(f"stellaris/figure_{figure}"):
            if which == baseline + ending and baseline in names:
                ours = total(stellaris(figure, task, f"{baseline} + Stellaris"), "seconds")
                found.append(total(stellaris(figure, task, which), "seconds") / ours)
    return significant_span(found)


def change_in_percent(ours: Runs, theirs: Runs, expense: str) -> float:
    return 100 * (total(ours, expense) / total(theirs, expense) - 1)


def saving(figure: str, expense: str) -> str:
    """What Stellaris saves beside a learner with a whole GPU."""
    name = BASELINES[figure]
    several = [(stellaris(figure, task, f"{name} + Stellaris"), stellaris(figure, task, f"{name}, whole GPU"))
               for task in TASKS]  # fmt: skip
    return span([-change_in_percent(ours, theirs, expense) for ours, theirs in several], 0) + " %"


def bills(*names: str) -> str:
    """Dollars of baselines by their own rules, with a quarter or a whole GPU, over those of Stellaris."""
    return f"{significant_span(_bills(names))} times"


def _bills(names: Iterable[str]) -> list[float]:
    found = []
    for figure, baseline in BASELINES.items():
        for task, which in series(f"stellaris/figure_{figure}"):
            if baseline in names and which in (baseline, f"{baseline}, whole GPU"):
                ours = total(stellaris(figure, task, f"{baseline} + Stellaris"), "cost_usd")
                found.append(total(stellaris(figure, task, which), "cost_usd") / ours)
    return found


def larger_than_minions() -> str:
    return f"{span(1 / value for value in _bills(['MinionsRL']))} times larger than MinionsRL's"


def dearer_than_minions() -> str:
    return f"{span([100 * (1 / value - 1) for value in _bills(['MinionsRL'])], 0)} % more than it"


def minions_for_equal_dollars(task: str) -> str:
    ours, theirs = stellaris("10", task, "MinionsRL + Stellaris"), stellaris("10", task, "MinionsRL")
    return " against ".join(plus_minus(each, 0) for each in reversed(final_for_equal(ours, theirs, "cost_usd")))


def humanoid_with_impact() -> str:
    """Final returns of IMPACT on Humanoid, with Stellaris and without."""
    lines = [line for line in table("stellaris/learned.csv") if int(line["seed"]) < 5]
    ours, theirs = (
        [returns[4 * len(returns) // 5 :].mean() for returns in
         (numbers(line["returns"]) for line in lines if line["variant"] == f"humanoid/impact-{system}")]
        for system in ("stellaris", "impact")
    )  # fmt: skip
    difference = welch(ours, theirs)
    ends_of_both = f"Stellaris ends at {np.mean(ours):.0f}, IMPACT at {np.mean(theirs):.0f}"
    return f"{ends_of_both} ({gain(difference, 0)}, {difference.verdict})"


STELLARIS_7 = ("IMPACT + Stellaris", "IMPACT + Stellaris, pipelined actors")
"""Stellaris in Figure 7, with actors that wait and with those of IMPACT."""


def impact_beside(ours: str) -> float:
    """Seconds of IMPACT with a whole GPU, over those of Stellaris, on Hopper."""
    alone, served = (stellaris("7", "hopper", which) for which in ("IMPACT, whole GPU", ours))
    return total(alone, "seconds") / total(served, "seconds")


def row_of_impact(suffix: str) -> str:
    """Final returns on Hopper, without and with Stellaris."""
    return row(*(ends(stellaris("7", "hopper", f"{which}{suffix}")) for which in ("IMPACT", *STELLARIS_7)))


def dollars_of_impact() -> str:
    several = (stellaris("7", "hopper", which) for which in (STELLARIS_7[1], "IMPACT, whole GPU"))
    return " against ".join(f"${total(runs, 'cost_usd'):.2f}" for runs in several)


def ends(several: Runs) -> str:
    return plus_minus(final(several), 0)


def row_of_ends(figure: str, which: str) -> str:
    return row(*(ends(stellaris(figure, task, which)) for task in TASKS))


def baseline_for_equal(figure: str, task: str, expense: str) -> str:
    """Return that a baseline has learned for what Stellaris takes."""
    name = BASELINES[figure]
    ours, theirs = stellaris(figure, task, f"{name} + Stellaris"), stellaris(figure, task, name)
    return plus_minus(final_for_equal(ours, theirs, expense)[1], 0)


def humanoid_beside_rllib() -> str:
    ours, theirs = (stellaris("9", "humanoid", which) for which in ("RLlib + Stellaris", "RLlib"))
    return " against ".join(plus_minus(each, 0) for each in final_for_equal(ours, theirs, "seconds"))


def row_on_hpc(which: str) -> str:
    """Final return, seconds and dollars of a system on the HPC testbed."""
    several = stellaris("12", "hopper", which)
    return row(ends(several), f"{total(several, 'seconds'):.0f}", f"{total(several, 'cost_usd'):.2f}")


def beside_par_rl() -> str:
    ours = total(stellaris("12", "hopper", "PAR-RL + Stellaris"), "seconds")
    both = (total(stellaris("12", "hopper", which), "seconds") / ours for which in ("PAR-RL", "PAR-RL, whole GPU"))
    return "{:.1f} times as fast as PAR-RL, {:.1f} times if that has whole GPUs".format(*both)


def ahead_of_par_rl(which: str, expense: str) -> str:
    both = (stellaris("12", "hopper", name) for name in ("PAR-RL + Stellaris", which))
    difference = welch(*final_for_equal(*both, expense))
    return loss(difference, 0)


def lower_without_truncation(kind: str) -> str:
    """How much lower truncation ends than none."""
    return loss(welch(final(stellaris("11b", "hopper", "without")), final(stellaris("11b", "hopper", kind))), 0)


CASES = [
    Case(FINDINGS, "Stellaris saves time and dollars", "none of 27 comparisons (21 different ones)",
         lambda: f"{higher()} ({len(different_ends())} different ones)"),
    Case(FINDINGS, "Stellaris saves time and dollars", "excluded in 24 of them",
         lambda: f"excluded in {sum(each.excludes for each in all_ends())} of them"),
    Case(STELLARIS, "outside our interval", "24 of the 27 comparisons",
         lambda: f"{sum(each.excludes for each in all_ends())} of the {len(all_ends())} comparisons"),
    Case(STELLARIS, "| a higher final return |", "none of 27 comparisons", higher),
    Case(STELLARIS, "| a higher final return |", "lower in 14", lambda: f"lower in {lower(all_ends())}"),
    Case(STELLARIS, "| a higher final return |", "of the 21 different ones it ends lower in 9",
         lambda: f"of the {len(different_ends())} different ones it ends lower in {lower(different_ends())}"),
    Case(STELLARIS, "| less time |", "1.9 to 3.6 times as fast as learners with a quarter of a GPU",
         lambda: f"{quotients('')} times as fast as learners with a quarter of a GPU"),
    *(Case(page, near, "1.2 to 1.3 times as fast as PPO",
           lambda: f"{quotients(', whole GPU', ('PPO', 'RLlib', 'MinionsRL'))} times as fast as PPO")
      for page, near in ((STELLARIS, "| less time |"), (STELLARIS, "**Stellaris is faster and cheaper than"),
                         (FINDINGS, "Stellaris saves time and dollars"))),
    Case(STELLARIS, "| less time |", "alone are pipelined, 0.70 times",
         lambda: f"alone are pipelined, {impact_beside(STELLARIS_7[0]):.2f} times"),
    Case(STELLARIS, "| less time |", "with equal actors 0.97",
         lambda: f"with equal actors {impact_beside(STELLARIS_7[1]):.2f}"),
    *(Case(STELLARIS, f"| {near}", printed, partial(row_of_impact, suffix)) for near, suffix, printed in (
        ("the paper's rate | 135", "", "135 ± 105 | 165 ± 193 | 79 ± 79"),
        ("tuned rates | 185", ", tuned", "185 ± 13 | 145 ± 67 | 169 ± 120"),
        ("a target a round | 597", ", a target a round", "597 ± 189 | 74 ± 80 | 106 ± 71"),
    )),
    Case(STELLARIS, "| seconds, IMPACT with a whole GPU |", "246 | 351 | 253", lambda: row(*(
        f"{total(stellaris('7', 'hopper', which), 'seconds'):.0f}" for which in ("IMPACT, whole GPU", *STELLARIS_7)))),
    Case(STELLARIS, "On equal actors, too, Stellaris", "3 % longer",
         lambda: f"{100 * (1 / impact_beside(STELLARIS_7[1]) - 1):.0f} % longer"),
    Case(STELLARIS, "On equal actors, too, Stellaris", "$0.50 against $0.75", dollars_of_impact),
    Case(STELLARIS, "Of these, five seeds a side", "Stellaris ends at 286, IMPACT at 190 (+95 ± 113, not shown)",
         humanoid_with_impact),
    *(Case(STELLARIS, "| fewer dollars |", printed, computed) for printed, computed in (
        ("1.9 to 5.3 times smaller than PPO's and RLlib's",
         lambda: f"{bills('PPO', 'RLlib')} smaller than PPO's and RLlib's"),
        ("1.2 to 3.2 times smaller than IMPACT's", lambda: f"{bills('IMPACT')} smaller than IMPACT's"),
        ("1.03 to 1.04 times larger than MinionsRL's", larger_than_minions),
    )),
    Case(STELLARIS, "**A quarter or a whole GPU.**", "925 and 416 seconds",
         lambda: "{:,.0f} and {:.0f} seconds".format(
             *(total(stellaris("6", "hopper", f"PPO{ending}"), "seconds") for ending in ("", ", whole GPU")))),
    Case(STELLARIS, "At the paper's rate Stellaris ends at 235", "235 ± 49, the synchronous system at 203 ± 9",
         lambda: ", the synchronous system at ".join(
             ends(stellaris("2", "hopper", which)) for which in ("Stellaris", "without asynchrony"))),
    Case(STELLARIS, "paper's largest gain, 370", "Stellaris ends at 234 ± 58 and PPO at 197 ± 58",
         lambda: "Stellaris ends at {} and PPO at {}".format(
             *(ends(stellaris("6", "gravitar", which)) for which in ("PPO + Stellaris", "PPO")))),
    Case(STELLARIS, "paper's largest gain, 370", "takes 2,268 s, PPO 6,734 or, with a whole GPU, 2,788",
         lambda: "takes {:,.0f} s, PPO {:,.0f} or, with a whole GPU, {:,.0f}".format(
             *(total(stellaris("6", "gravitar", which), "seconds")
               for which in ("PPO + Stellaris", "PPO", "PPO, whole GPU")))),
    Case(STELLARIS, "the paper's 2.2 times, 202", "Stellaris ends at 195 ± 44 and PPO at 218 ± 57",
         lambda: "Stellaris ends at {} and PPO at {}".format(
             *(ends(stellaris("6", "qbert", which)) for which in ("PPO + Stellaris", "PPO")))),
    Case(STELLARIS, "paper's 2.2 times, 202", "takes 1,125 s, PPO 3,462 or, with a whole GPU, 1,390",
         lambda: "takes {:,.0f} s, PPO {:,.0f} or, with a whole GPU, {:,.0f}".format(
             *(total(stellaris("6", "qbert", which), "seconds")
               for which in ("PPO + Stellaris", "PPO", "PPO, whole GPU")))),
    Case(STELLARIS, "| Stellaris | 235", "235 ± 49 | 316 ± 29 | 175 ± 31",
         partial(row_of_ends, "6", "PPO + Stellaris")),
    Case(STELLARIS, "| one central learner (PPO) |", "307 ± 53 | 343 ± 17 | 273 ± 21",
         partial(row_of_ends, "6", "PPO")),
    Case(STELLARIS, "in the time that Stellaris takes", "185 ± 20 on Humanoid and 129 ± 30 on Walker2d",
         lambda: "{} on Humanoid and {} on Walker2d".format(
             *(baseline_for_equal("6", task, "seconds") for task in TASKS[1:]))),
    Case(STELLARIS, "in the time that Stellaris takes", "for its dollars 134 ± 16 and 69 ± 13",
         lambda: "for its dollars " + " and ".join(baseline_for_equal("6", task, "cost_usd") for task in TASKS[1:])),
    Case(STELLARIS, "MinionsRL pays for functions here", "3 to 4 % more than it", dearer_than_minions),
    Case(STELLARIS, "- *Time*: with Stellaris 351 s.", "670 s with a quarter of a GPU, and 246 s with a whole one",
         lambda: "{:.0f} s with a quarter of a GPU, and {:.0f} s with a whole one".format(
             *(total(stellaris("7", "hopper", f"IMPACT{ending}"), "seconds") for ending in ("", ", whole GPU")))),
    Case(STELLARIS, "MinionsRL trains as PPO does",
         "(307 ± 53 against 232 ± 47) and on Humanoid (343 ± 17 against 309 ± 33)",
         lambda: "({}) and on Humanoid ({})".format(*map(minions_for_equal_dollars, TASKS[:2]))),
    Case(STELLARIS, "MinionsRL trains as PPO does", "(272 ± 20 against 172 ± 33)",
         lambda: f"({minions_for_equal_dollars(TASKS[2])})"),
    *(Case(STELLARIS, f"| {near} |", printed, partial(row_of_ends, "9", which)) for near, which, printed in (
        ("RLlib, the paper's rate", "RLlib", "256 ± 39 | 337 ± 10 | 240 ± 49"),
        ("Stellaris, the paper's rate", "RLlib + Stellaris", "235 ± 49 | 316 ± 29 | 175 ± 31"),
        ("RLlib, Hopper's best rate of its grid", "RLlib, tuned", "304 ± 26 | 328 ± 8 | 292 ± 16"),
        ("Stellaris, Hopper's best rate of its grid", "RLlib + Stellaris, tuned", "188 ± 123 | 166 ± 18 | 265 ± 21"),
    )),
    Case(STELLARIS, "Stellaris takes less than half of the time", "15 to 19 %", partial(saving, "9", "seconds")),
    Case(STELLARIS, "- *After the same time* as with", "316 ± 29 against 198 ± 40", humanoid_beside_rllib),
    Case(STELLARIS, "*SSP and pure asynchrony* apply", "236 ± 40 and 252 ± 44 against Stellaris's 233 ± 19",
         lambda: "{} and {} against Stellaris's {}".format(
             *(ends(stellaris("11a", "hopper", which)) for which in ("SSP", "asynchronous", "Stellaris")))),
    *(Case(STELLARIS, f"| {near} |", printed, partial(row_on_hpc, which)) for near, which, printed in (
        ("Stellaris | 233 ± 19", "PAR-RL + Stellaris", "233 ± 19 | 342 | 4.02"),
        ("PAR-RL, a quarter of a GPU a learner", "PAR-RL", "242 ± 22 | 667 | 15.74"),
        ("PAR-RL, whole GPUs", "PAR-RL, whole GPU", "242 ± 22 | 385 | 9.09"),
    )),
    Case(STELLARIS, "| less time |", "1.9 times as fast as PAR-RL, 1.1 times if that has whole GPUs", beside_par_rl),
    *(Case(STELLARIS, near, printed, partial(ahead_of_par_rl, which, expense)) for near, which, expense, printed in (
        ("- *After the same time* as PAR-RL", "PAR-RL", "seconds", "19 ± 17"),
        ("- *After the same dollars*, each by its own rule, it", "PAR-RL", "cost_usd", "85 ± 27"),
        ("- *After the same dollars*, each by its own rule, it", "PAR-RL, whole GPU", "cost_usd", "24 ± 18"),
    )),
    Case(STELLARIS, "- *As the released code has it*", "50 ± 23 lower",
         lambda: f"{lower_without_truncation('artifact')} lower"),
]  # fmt: skip
