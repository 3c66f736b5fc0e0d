"""Figure of "Stellaris" (SC'24) about the system itself, computed from the timeline."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure

from stellaris_jax.base.statistics import mean_ci95
from stellaris_jax.execute.loading import load_config
from stellaris_jax.report.curves import BLUE, COLOURS, DPI, TEXT, VERMILION, save, tidy
from stellaris_jax.report.style import drawing
from stellaris_jax.timeline import Timeline
from studies import published
from studies.claims import Claim, fact, less, more
from studies.stellaris.study import variant
from studies.store import Learned
from studies.study import Study

SEEDS = 5
ROUNDS = 50


def staleness(study: Study) -> list[Claim]:
    """Fig. 3: learning time, utilisation and staleness by number of asynchronous learners; KL divergence per round.

    Times and staleness come from the timeline alone; the divergence is trained on Hopper.
    """
    seeds = range(study.seeds or SEEDS)
    cells = {(a, n): _learning(a, n, seeds) for a in published.LEARNING_SECONDS for n in published.LEARNERS}
    systems = {"asynchronous": variant("hopper", "async"), "synchronous": variant("hopper", "no-async")}
    results = study.learned(systems.values(), seeds)
    divergence = {name: results[trained] for name, trained in systems.items()}
    study.table(
        "3",
        ("actors", "learners", "seed", "learning_seconds", "utilisation", "staleness_mean", "staleness_max"),
        (
            (actors, learners, seed, *(f"{value:.5g}" for value in row[:4]))
            for (actors, learners), rows in cells.items()
            for seed, row in zip(seeds, rows, strict=True)
        ),
    )
    counts = [(n, s, f"{share:.5g}") for n in published.LEARNERS for s, share in enumerate(cells[32, n][0][4])]
    study.table("3_staleness", ("learners", "staleness", "share_of_gradients"), counts)
    curves = {name: zip(*_divergence(runs), strict=True) for name, runs in divergence.items()}
    kl = [(name, round_, f"{value:.5g}") for name, curve in curves.items() for round_, value in curve]
    study.table("3_kl", ("learners", "round", "kl"), kl)
    save(_staleness_figure(cells, divergence), study.picture("3"))
    claims = []
    for actors in published.LEARNING_SECONDS:
        few, many = cells[actors, 2], cells[actors, 8]
        seconds, used = published.LEARNING_SECONDS[actors], published.UTILISATION[actors]
        if seconds[-1] < seconds[0]:  # the paper shows no gain with 8 actors
            paper = f"{seconds[-1]} s against {seconds[0]} s"
            text = f"{actors} actors: 8 learners learn a round faster than 2"
            claims.append(less(text, paper, [row[0] for row in many], [row[0] for row in few], " s"))
        paper = f"{used[-1]} % against {used[0]} %"
        high, low = ([100 * row[1] for row in rows] for rows in (few, many))
        claims.append(less(f"{actors} actors: 8 learners are busy for less of the time than 2", paper, low, high, " %"))
    means = [[row[2] for row in cells[32, n]] for n in published.LEARNERS]
    for i, (fewer, more_) in enumerate(pairwise(published.LEARNERS)):
        text = f"staleness is higher with {more_} learners than with {fewer} (paper: mode, here: mean)"
        modes = f"{published.STALENESS_MODE[i + 1]} against {published.STALENESS_MODE[i]}"
        claims.append(more(text, modes, means[i + 1], means[i]))
    peaks = [float(_divergence(divergence[name])[1].max()) for name in systems]
    paper = " against ".join(str(value) for value in published.KL_PEAK.values())
    text = "asynchronous learners move the policy further in a round (largest KL of the mean over seeds)"
    claims.append(fact(text, paper, f"{peaks[0]:.2g} against {peaks[1]:.2g}", peaks[0] > peaks[1]))
    return claims


Cell = tuple[float, float, float, int, np.ndarray]
"""Result of one timeline.

Its values: learning seconds a round, from the complete fragment to the last update; share of them in which learners
are busy; mean and largest staleness; and share of gradients by staleness.
"""


def _learning(actors: int, learners: int, seeds: Sequence[int]) -> list[Cell]:
    """Timelines of some seeds under pure asynchrony, with so many actors and learners."""
    config = load_config(["experiment=stellaris/hopper", "system=async", f"system.learners={learners}"])
    # Each actor has one environment; the size of minibatches is constant.
    gradients = config.algorithm.epochs * config.algorithm.minibatches * actors // config.env.num_envs
    cells = []
    for seed in seeds:
        parts = (config.system, config.platform, config.delays)
        timeline = Timeline(*parts, gradients_per_round=gradients, seed=seed, actors=actors)
        rounds = [timeline.next_round() for _ in range(ROUNDS)]
        usage = rounds[-1].usage
        learning = sum(round_.usage.seconds - round_.complete for round_ in rounds)
        counts = np.bincount([s for round_ in rounds for s in round_.staleness()])
        mean = usage.staleness_total / usage.gradients
        busy = usage.learner_busy / (learners * learning)
        cells.append((learning / ROUNDS, busy, mean, usage.staleness_max, counts / counts.sum()))
    return cells


def _divergence(runs: Sequence[Learned]) -> tuple[np.ndarray, np.ndarray]:
    """Rounds, and the KL divergence between the actors' policy and the learners' in each, mean over seeds."""
    return np.array(runs[0].rounds), np.mean([run.kl for run in runs], axis=0)


@drawing()
def _staleness_figure(cells: dict[tuple[int, int], list[Cell]], divergence: dict[str, list[Learned]]) -> Figure:
    figure = Figure(figsize=(10, 3.4), dpi=DPI, layout="constrained")
    figure.suptitle("Figure 3: what more learners do (paper: dotted)", fontsize=TEXT + 2, fontweight="bold")
    seconds, density, kl = figure.subplots(1, 3)
    for colour, (actors, theirs) in zip(COLOURS, published.LEARNING_SECONDS.items(), strict=False):
        ours = [mean_ci95([row[0] for row in cells[actors, n]])[0] for n in published.LEARNERS]
        seconds.plot(published.LEARNERS, ours, color=colour, marker="o", label=f"{actors} actors")
        seconds.plot(published.LEARNERS, theirs, color=colour, marker="o", markerfacecolor="white", linestyle=":")
    seconds.set_yscale("log")
    seconds.set_yticks([2, 3, 5, 10, 20, 30], ["2", "3", "5", "10", "20", "30"])
    seconds.minorticks_off()
    seconds.set_ylabel("learning seconds a round", fontsize=TEXT)
    seconds.set_xlabel("learners", fontsize=TEXT)
    for colour, learners in zip(COLOURS, published.LEARNERS, strict=False):
        counts = cells[32, learners][0][4]
        density.plot(np.arange(len(counts)), counts, color=colour, label=f"{learners} learners")
    for colour, mode in zip(COLOURS, published.STALENESS_MODE, strict=False):
        density.axvline(mode, color=colour, linestyle=":", linewidth=1)
    density.set_xlabel("staleness (versions), 32 actors", fontsize=TEXT)
    density.set_ylabel("share of gradients", fontsize=TEXT)
    for colour, (name, runs) in zip((VERMILION, BLUE), divergence.items(), strict=True):
        kl.plot(*_divergence(runs), color=colour, label=name)
        kl.axhline(published.KL_PEAK[name], color=colour, linestyle=":", linewidth=1)
    kl.set_xlabel("round", fontsize=TEXT)
    kl.set_ylabel("KL divergence", fontsize=TEXT)
    for axes in (seconds, density, kl):
        axes.legend(fontsize=TEXT - 2, frameon=False)
        tidy(axes)
    return figure
