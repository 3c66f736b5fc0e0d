"""Figure of the study and its claims: `scripts/reproduce.py choose`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.base.statistics import paired
from stellaris_jax.many.choose.arms import BASELINES
from stellaris_jax.many.choose.verdict import interval_of
from stellaris_jax.report.curves import BLUE, GREEN, TEXT, VERMILION, legend_below, save, titled
from stellaris_jax.report.style import drawing
from stellaris_jax.telemetry.format import percent
from studies.choose.pairs import JUDGING, PAIRS, TASKS, Pair
from studies.choose.runs import OPTIONS, Full, chosen, full
from studies.claims import Claim, fact, more
from studies.study import Figure, Study

ENVS = list(TASKS)
DRAWS = 2000
"""Random searches that are averaged."""
DEFAULT = "Stellaris"
"""Default system of the package, at its configured learning rate."""
ASYNC = "async"
HEADER = (
    "task", "delays", "choice", "learning_rate", "seconds", "best", "best_learning_rate", "best_seconds", "regret",
    "regret_of_async", "regret_of_random_search", "loss_of_default", "loss_of_baselines", "cost", "covered", "judged",
)  # fmt: skip


class Outcome(NamedTuple):
    """Choice of a pair beside all candidates; regrets are shares of the best one's seconds.

    Attributes:
      pair: the pair.
      choice: name and learning rate of the choice.
      seconds: its geometric mean of seconds to the target on the study's seeds.
      best: name and learning rate of the candidate with the lowest mean.
      best_seconds: its geometric mean of seconds.
      regret: regret of the choice.
      tuned_async: regret of async at the best of its learning rates.
      random: mean regret of random searches that cost as much as the choice.
      default: regret of the default system.
      baselines: loss of a judged baseline by its learning rate, as a share of its seconds at the best one; the largest.
      cost: processor seconds of the choice as a share of those of all candidates.
      covered: number of stated intervals that cover the mean of the study's seeds.
      judged: number of stated intervals.
    """

    pair: Pair
    choice: tuple[str, float]
    seconds: float
    best: tuple[str, float]
    best_seconds: float
    regret: float
    tuned_async: float
    random: float
    default: float
    baselines: float
    cost: float
    covered: int
    judged: int


def outcome(pair: Pair, done: Full, answer: dict[str, Any]) -> Outcome:
    """Outcome of a pair.

    Args:
      pair: the pair.
      done: all its candidates.
      answer: the choice, as `stellaris-jax choose` writes it.
    """
    means = [interval_of(values, geometric=True).middle for values in done.values]
    keys = list(zip(done.names, done.rates, strict=True))
    best = int(np.argmin(means))
    results = [((own["name"], own["learning_rate"]), own) for own in answer["results"]]
    choice = results[0][0]
    cost = answer["processor_seconds"] / done.seconds

    def regret(place: int) -> float:
        return means[place] / means[best] - 1.0

    stated = [(key, own) for key, own in results if own["low"] is not None]
    covered = [own["low"] <= means[keys.index(key)] <= own["high"] for key, own in stated]
    if (confirmed := answer["confirmed"]) is not None and confirmed["low"] is not None:
        covered.append(confirmed["low"] <= means[keys.index(choice)] <= confirmed["high"])
    default = [place for place, (name, _) in enumerate(keys) if name == DEFAULT]
    losses = [
        means[keys.index(key)] / min(mean for (name, _), mean in zip(keys, means, strict=True) if name == key[0]) - 1.0
        for key, _ in results
        if key[0] in BASELINES
    ]
    return Outcome(
        pair=pair,
        choice=choice,
        seconds=means[keys.index(choice)],
        best=keys[best],
        best_seconds=means[best],
        regret=regret(keys.index(choice)),
        tuned_async=min(regret(place) for place, (name, _) in enumerate(keys) if name == ASYNC),
        random=random_search(np.array(done.values), cost),
        default=regret(default[0]),
        baselines=max(losses, default=0.0),
        cost=cost,
        covered=sum(covered),
        judged=len(covered),
    )


def random_search(values: np.ndarray, cost: float, draws: int = DRAWS) -> float:
    """Mean regret of random searches, geometric.

    Each trains random candidates on as many seeds as a choice searches with, or on more if all candidates would leave
    some of the cost. It chooses the one with the lowest mean, and is judged on the other seeds, beside the best there.

    Args:
      values: seconds to the target `[candidate, seed]`.
      cost: cost as a share of that of all candidates on all seeds.
      draws: number of searches.
    """
    count, seeds = values.shape
    runs = round(cost * count * seeds)
    searched = min(max(OPTIONS.seeds, math.ceil(runs / count)), seeds - 1)
    tried = min(count, max(1, runs // searched))
    random = np.random.default_rng(0)
    logarithms = np.log(values)
    regrets = []
    for _ in range(draws):
        places = random.choice(count, tried, replace=False)
        order = random.permutation(seeds)
        few, others = order[:searched], order[searched:]
        place = places[int(logarithms[places][:, few].mean(axis=1).argmin())]
        judged = logarithms[:, others].mean(axis=1)
        regrets.append(judged[place] - judged.min())
    return math.exp(float(np.mean(regrets))) - 1.0


def regret(study: Study) -> list[Claim] | None:
    """Choices beside the best of thirty candidates, by pairs of a task and delays."""
    pairs = [pair for pair in PAIRS if study.envs is None or pair.task in study.envs]
    outcomes = []
    for pair in pairs:
        done = full(pair, study)
        outcomes.append(outcome(pair, done, chosen(pair, study)))
    study.table("regret", HEADER, [_row(own) for own in outcomes])
    save(_picture(outcomes), study.picture("regret"))
    judging = [own for own in outcomes if own.pair in JUDGING]
    return _claims(judging or outcomes, len(judging) < len(outcomes))


def _row(own: Outcome) -> list[Any]:
    figures = (own.regret, own.tuned_async, own.random, own.default, own.baselines, own.cost)
    return [
        *own.pair, *own.choice, f"{own.seconds:.6g}", *own.best, f"{own.best_seconds:.6g}",
        *(f"{figure:.4g}" for figure in figures), own.covered, own.judged,
    ]  # fmt: skip


def _claims(outcomes: Sequence[Outcome], others: bool) -> list[Claim]:
    """Claims on pairs that judge; there may be `others`, by which `choose` was mended."""
    regrets = [own.regret for own in outcomes]
    middle, cost = float(np.median(regrets)), max(own.cost for own in outcomes)
    covered, judged = sum(own.covered for own in outcomes), sum(own.judged for own in outcomes)
    lost, off = sum(own.default >= 0.25 for own in outcomes), max(own.baselines for own in outcomes)
    text = "regret of the choice is lower than that of"
    on = f" on the {len(outcomes)} pairs that judge" if others else ""
    of_async, of_random = [own.tuned_async for own in outcomes], [own.random for own in outcomes]
    return [
        fact(f"the median regret of the choice is at most 10 %{on}", "–", percent(middle), middle <= 0.1),
        more(f"{text} async with a tuned learning rate (paired)", "–", of_async, regrets, test=paired),
        more(f"{text} random search at equal cost (paired)", "–", of_random, regrets, test=paired),
        fact(
            "stated 95 % intervals cover the mean on other seeds in at least 85 %", "–", f"{covered} of {judged}",
            covered >= 0.85 * judged,
        ),
        fact(
            "the learning rates of baselines cost them at most 10 % of their seconds", "–", f"at most {percent(off)}",
            off <= 0.1,
        ),
        fact("a choice costs at most a tenth of training all candidates", "–", f"at most {percent(cost)}", cost <= 0.1),
        fact(
            "the default system loses 25 % or more on at least three pairs", "–", f"{lost} of {len(outcomes)}",
            lost >= 3,
        ),
    ]  # fmt: skip


@drawing()
def _picture(outcomes: Sequence[Outcome]) -> Any:
    figure = titled("Regret against the best of thirty candidates, in seconds to the target", height=3.6)
    axes = figure.subplots()
    places = np.arange(len(outcomes))
    series = {
        "choose": ([own.regret for own in outcomes], BLUE, "o"),
        "async, tuned": ([own.tuned_async for own in outcomes], VERMILION, "s"),
        "random search": ([own.random for own in outcomes], GREEN, "^"),
        "default system": ([own.default for own in outcomes], "0.5", "x"),
    }
    for place, own in zip(places, outcomes, strict=True):
        if own.pair not in JUDGING:
            axes.axvspan(place - 0.5, place + 0.5, color="0.93", linewidth=0, zorder=0)
    for label, (values, colour, marker) in series.items():
        axes.plot(places, 100 * np.array(values), marker, color=colour, label=label)
    axes.set_yscale("symlog", linthresh=10)
    ticks = [0, 10, 100, 1000]
    axes.set_yticks(ticks, list(map(str, ticks)))  # the scale's own labels are formulas
    axes.minorticks_off()
    axes.set_xticks(places, [f"{own.pair.task}\n{own.pair.delays}" for own in outcomes], fontsize=TEXT - 2, rotation=45)
    axes.set_ylabel("regret (%)")
    note = (
        "grey: pairs that were seen before a change, which judge nothing"
        if any(own.pair not in JUDGING for own in outcomes)
        else ""
    )
    legend_below(figure, axes.get_legend_handles_labels()[0], len(series), note)
    return figure


FIGURES: dict[str, Figure] = {"regret": regret}
