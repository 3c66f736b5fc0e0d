"""Numbers of the pages on the papers Nitro and MinionsRL."""

from __future__ import annotations

from functools import partial

import numpy as np
from scipy.stats import mode

from published.case import Case
from published.files import numbers, table
from published.paper_runs import TASKS, Runs, expense_to, final_for_equal, runs, total
from published.papers import change_in_percent, ends
from published.statistics import interval, welch
from published.texts import PARTS, loss, row, span

NITRO, MINIONS = "results/nitro/README.md", "results/minionsrl/README.md"


def nitro(figure: str, which: str, task: str = "hopper") -> Runs:
    return runs(f"nitro/figure_{figure}", task, which)


def minions(task: str, which: str) -> Runs:
    return runs("minionsrl/figure_4", task, which)


def boosting(expense: str) -> str:
    """What boosting costs beside 16 actors."""
    several = [(nitro("10", "PPO + Nitro", task), nitro("10", "PPO", task)) for task in TASKS]
    return span([change_in_percent(ours, theirs, expense) for ours, theirs in several], 0) + " %"


def ends_of_rule(which: str) -> str:
    """Final returns of a rule for the number of actors, in Figure 15 of the Nitro paper."""
    return ends(nitro("15", which))


def beside_stellaris_alone() -> str:
    both, alone = nitro("together", "Stellaris + Nitro"), nitro("together", "Stellaris")
    dollars = total(both, "cost_usd") / total(alone, "cost_usd") - 1
    thirds = "two thirds" if round(3 * dollars) == 2 else f"{100 * dollars:.0f} %"
    return f"{change_in_percent(both, alone, 'seconds'):.0f} % more | {thirds} more"


def beside_nitro_by_use() -> str:
    both, used = nitro("together", "Stellaris + Nitro"), nitro("together", "Nitro, by use")
    return f"{-change_in_percent(both, used, 'cost_usd'):.0f} % less if Nitro's learner were billed by use"


def seconds_of_detection(task: str) -> str:
    seconds = {
        whole: np.mean([float(line["seconds"]) for line in table("nitro/figure_20.csv")
                        if line["env"] == task and (line["what"] != "sub-sampled") == whole])
        for whole in (False, True)
    }  # fmt: skip
    return f"{seconds[False]:.1f} s and {seconds[True]:.1f} s"


def minions_against_all(task: str) -> str:
    return f"{ends(minions(task, 'MinionsRL'))} against {ends(minions(task, 'Max'))}"


def dollars_beside_max() -> str:
    tasks = ("hopper", "humanoid", "halfcheetah")
    ratios = [total(minions(task, "Max"), "cost_usd") / total(minions(task, "MinionsRL"), "cost_usd") for task in tasks]
    return f"a {PARTS[round(min(ratios))]} to a {PARTS[round(max(ratios))]} of Max's bill"


def dollars_beside_adapt() -> str:
    own, adapts = (np.mean(expense_to(minions("cartpole", who), "cost_usd", 475)) for who in ("MinionsRL", "Adapt"))
    return f"{PARTS[round(adapts / own)]} of what Adapt costs"


def ahead_for_equal_dollars(rival: str) -> str:
    both = final_for_equal(minions("humanoid", "MinionsRL"), minions("humanoid", rival), "cost_usd")
    return loss(welch(*both), 0)


def usual_actors() -> str:
    lines = [line for line in table("minionsrl/learned.csv") if line["variant"] == "cartpole/minionsrl"]
    return f"{mode(np.concatenate([numbers(line['actors']) for line in lines])).mode:.0f} of 16"


def seconds_of_training(what: str) -> str:
    lines = [line for line in table("minionsrl/figure_schedulers.csv") if line["of"] == "seconds"]
    mean, half = interval([float(line["value"]) for line in lines if line["what"] == what])
    return f"{mean:.0f} s ± {half:.0f}"


CASES_OF_NITRO = [
    Case(NITRO, "| time | 14", "14 to 16 %", partial(boosting, "seconds")),
    Case(NITRO, "| dollars | 27", "27 to 29 %", partial(boosting, "cost_usd")),
    Case(NITRO, "not shown to differ", "290 ± 48 against 299 ± 52",
         lambda: " against ".join(ends(nitro("together", which)) for which in ("Stellaris + Nitro", "Nitro"))),
    Case(NITRO, "four learner functions that do not slow", "31 % less if Nitro's learner were billed by use",
         beside_nitro_by_use),
    Case(NITRO, "| Stellaris alone |", "12 % more | two thirds more", beside_stellaris_alone),
    Case(NITRO, "| Nitro | 299 ± 52 | 332", "299 ± 52 | 332 ± 11 | 296 ± 22",
         lambda: row(*(ends(nitro("10", "PPO + Nitro", task)) for task in TASKS))),
    Case(NITRO, "| 16 actors |", "291 ± 53 | 342 ± 16 | 290 ± 25",
         lambda: row(*(ends(nitro("10", "PPO", task)) for task in TASKS))),
    *(Case(NITRO, f"| {near} |", printed, partial(ends_of_rule, which))
      for near, which, printed in (
        ("MinionsRL", "MinionsRL", "251 ± 30"), ("KungFu", "KungFu", "250 ± 57"),
        ("Hydrozoa", "Hydrozoa", "279 ± 68"), ("all 64 actors always", "all actors", "526 ± 327"),
    )),
    Case(NITRO, "It takes a third of one on a", "0.6 s and 2.0 s", partial(seconds_of_detection, "hopper")),
    Case(NITRO, "It takes a third of one on a", "1.1 s and 3.2 s", partial(seconds_of_detection, "humanoid")),
]  # fmt: skip

CASES_OF_MINIONS = [
    *(Case(MINIONS, f"| {near} | less than Max", printed, partial(minions_against_all, task))
      for near, task, printed in (
        ("Hopper", "hopper", "236 ± 43 against 814 ± 221"), ("Humanoid", "humanoid", "147 ± 16 against 273 ± 16"),
        ("HalfCheetah", "halfcheetah", "−342 ± 30 against −139 ± 14"),
    )),
    Case(MINIONS, "| CartPole, to the target |", "half of what Adapt costs", dollars_beside_adapt),
    Case(MINIONS, "**It chooses 2 to 6 of 32 actors", "a sixth to a fourteenth of Max's bill", dollars_beside_max),
    *(Case(MINIONS, "- *On Humanoid* it is ahead of Max", printed, partial(ahead_for_equal_dollars, rival))
      for rival, printed in (("Max", "34 ± 16"), ("Adapt", "23 ± 16"))),
    Case(MINIONS, "**A good number of actors", "3 of 16", usual_actors),
    *(Case(MINIONS, f"| {near} |", printed, partial(seconds_of_training, what)) for near, what, printed in (
        ("100 jobs of CartPole", "pre-training", "34 s ± 10"),
        ("100 jobs of Catch", "pre-training anew", "28 s ± 6"),
        ("fine-tuning CartPole's scheduler on 10 jobs of Catch", "fine-tuning", "14 s ± 12"),
    )),
]  # fmt: skip

CASES = [*CASES_OF_NITRO, *CASES_OF_MINIONS]
