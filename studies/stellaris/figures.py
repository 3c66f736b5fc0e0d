"""Figures of "Stellaris" (SC'24), and the paper's claims with each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from stellaris_jax.execute.loading import load_config
from stellaris_jax.telemetry.format import significant
from stellaris_jax.timeline import Timeline
from studies import published
from studies.claims import Claim, less, more
from studies.hardware import full_gpu
from studies.history import History, Series, alike, common_cost, cost, final, of, seconds
from studies.pictures import SLOW, TUNED, Bar, Mark, bars, curves, end_marks
from studies.sensitivity import Parameter, one_at_a_time
from studies.stellaris.baselines import BASELINES, FULL_GPU
from studies.stellaris.cluster import cluster
from studies.stellaris.study import ATARI, STEPS, swept, tuned, variant
from studies.stellaris.systems import staleness
from studies.stellaris.timing import PIPELINED, timing
from studies.study import Figure, Study
from studies.training import Variant

SEEDS, MANY_SEEDS = 5, 10
MUJOCO = ("hopper", "humanoid", "walker2d")
ENVS = (*MUJOCO, *ATARI)

RATES = {"": "the paper's rate", TUNED: "tuned rates"}
"""Learning rates by the suffixes of their series' names."""
COMPARISONS = {"6": "PPO", "7": "IMPACT", "9": "RLlib", "10": "MinionsRL"}


def motivation(study: Study) -> list[Claim]:
    """Fig. 2: Stellaris on Hopper without asynchronous learners, and without serverless ones."""
    env = "hopper"
    series = []
    for suffix in _rates(study):
        full = _trained(study, env, "stellaris", suffix)
        series += [
            Series(f"Stellaris{suffix}", env, full),
            Series(f"without asynchrony{suffix}", env, _trained(study, env, "no-async", suffix)),
            Series(f"without serverless{suffix}", env, full, ("system=stellaris_no_serverless",)),
        ]
    histories = study.histories("2", series, SEEDS)
    marks = [mark for name, end in published.MOTIVATION.items() for mark in end_marks(name, histories, end)]
    panels = _by_rates(study, histories)
    curves(panels, dict.fromkeys(panels, marks), study.picture("2"), "Figure 2: what asynchrony and functions give")
    ours, sync, serverful = (of(histories, env, curve.name) for curve in series[:3])
    return [
        *(
            more(
                f"asynchronous learners end higher, {rates}",
                "351 against 223",
                final(of(histories, env, f"Stellaris{suffix}")),
                final(of(histories, env, f"without asynchrony{suffix}")),
            )
            for suffix, rates in _rates(study).items()
        ),
        less("asynchronous learners take less time", "264 s against 293 s", seconds(ours), seconds(sync), " s"),
        less("serverless learners cost less", "$0.73 against $1.13", cost(ours), cost(serverful), "$"),
    ]


def comparison(study: Study, figure: str) -> list[Claim]:
    """Fig. 6, 7, 9, 10: a baseline without and with Stellaris, at the paper's learning rate and at the best of each."""
    name = COMPARISONS[figure]
    envs = study.envs or ENVS
    histories = study.histories(figure, _compared(study, name, envs), SEEDS)
    panels: dict[str, list[History]] = {}
    marks: dict[str, list[Mark]] = {}
    claims = []
    for env in _envs(histories):
        base, ours = published.ENDS[name][env]
        for suffix, rates in {**RATES, SLOW: SLOW.removeprefix(", ")}.items():
            panel = f"{env}, {rates}"
            a, b = of(histories, env, f"{name} + Stellaris{suffix}"), of(histories, env, f"{name}{suffix}")
            if not a:
                continue  # published earlier, at the paper's learning rate only
            early = of(histories, env, f"{name} + Stellaris{PIPELINED}{suffix}")
            panels[panel] = [*b, *of(histories, env, f"{name}{FULL_GPU}{suffix}"), *a, *early]
            marks[panel] = [*end_marks(name, b, base), *end_marks(f"{name} + Stellaris", a, ours)]
            where = f"{name} on {env}, {rates}: Stellaris"
            paper = f"{ours.reward:.0f} against {base.reward:.0f}"
            claims.append(more(f"{where} ends higher", paper, final(a), final(b)))
            if early:
                claims.append(more(f"{where}{PIPELINED}, ends higher", "–", final(early), final(b)))
        papers = {"": f"{ours.seconds} s against {base.seconds} s", PIPELINED: "–"}
        for (actors, paper), rival in product(papers.items(), _rivals(name)):
            a, b = of(histories, env, f"{name} + Stellaris{actors}"), of(histories, env, rival)
            if not a:
                continue
            where = f"{rival} on {env}: Stellaris{actors and f'{actors},'}"
            claims.append(less(f"{where} takes less time", paper, seconds(a), seconds(b), " s"))
            for axis, what in (("seconds", "time"), ("cost_usd", "dollars, each by its own rule")):
                claims.append(more(f"{where} is higher after the same {what}", "–", *alike(a, b, axis)))
    curves(panels, marks, study.picture(figure), f"Figure {figure}: {name} without and with Stellaris")
    return claims


def _compared(study: Study, name: str, envs: Iterable[str]) -> list[Series]:
    algorithm, system, billed = BASELINES[name]
    functions = ("system.actor_billing=serverless",) if name == "MinionsRL" else ()
    series = []
    for env in envs:
        for suffix in (*_rates(study), *([SLOW] if algorithm == "impact" else [])):
            base, ours = (_trained(study, env, trained, suffix, algorithm) for trained in (system, "stellaris"))
            series.append(Series(f"{name}{suffix}", env, base, billed))
            series.append(Series(f"{name} + Stellaris{suffix}", env, ours, functions))
            series.append(Series(f"{name}{FULL_GPU}{suffix}", env, base, (*billed, *full_gpu(base))))
            if algorithm == "impact":  # whose actors are pipelined
                early = _trained(study, env, "stellaris-pipelined", suffix, algorithm)
                series.append(Series(f"{name} + Stellaris{PIPELINED}{suffix}", env, early))
    return series


def _rivals(name: str) -> list[str]:
    """Baseline, and the baseline with a GPU for each learner; the timing of none affects what it learns."""
    return [name, f"{name}{FULL_GPU}"]


def costs(study: Study) -> list[Claim]:
    """Fig. 8: dollars of the runs of figures 6, 7, 9 and 10, by each system's own rule and at the common price."""
    envs = study.envs or ENVS
    rows, claims = [], []
    panels: dict[str, list[Bar]] = {}
    for figure, name in COMPARISONS.items():
        histories = study.histories(figure, _compared(study, name, envs), SEEDS)
        panels[name] = []
        for env in _envs(histories):
            ends = published.ENDS[name][env]
            ours = of(histories, env, f"{name} + Stellaris")
            paper = f"${ends[1].dollars:.2f} against ${ends[0].dollars:.2f}"
            for rival in _rivals(name):
                base = of(histories, env, rival)
                where = f"{rival} on {env}: Stellaris costs less"
                own = cost(ours), cost(base)
                common = common_cost(ours), common_cost(base)
                for prices, (a, b) in (
                    ("each by its own rule", own),
                    ("at the common price, in proportion to time", common),
                ):
                    claim = less(f"{where}, {prices}", paper, a, b, "$")
                    factor = significant(np.mean(b) / np.mean(a), 2)
                    claims.append(replace(claim, ours=f"{claim.ours} (a factor of {factor})"))
            for label in (*_rivals(name), f"{name} + Stellaris"):
                members, end = of(histories, env, label), ends["Stellaris" in label]
                panels[name].append(Bar(f"{env}\n{label}", end.dollars, cost(members)))
                for h in members:
                    dollars = (end.dollars, h.cost_usd[-1], h.learner_usd[-1], h.common_usd[-1])
                    rows.append((env, h.series, h.seed, *(f"{value:.5g}" for value in dollars)))
    header = ("env", "series", "seed", "paper_usd", "cost_usd", "learner_usd", "common_usd")
    study.table("8", header, rows)
    bars(panels, study.picture("8"), "Figure 8: cost of training", "dollars")
    return claims


def ablation(study: Study) -> list[Claim]:
    """Fig. 11a: other aggregation rules in the place of Stellaris's, on Hopper."""
    env = "hopper"
    systems = {
        "Stellaris": "stellaris",
        "softsync": swept(study, env, "softsync"),
        "SSP": swept(study, env, "ssp"),
        "asynchronous": "async",
    }
    series = [
        Series(f"{name}{suffix}", env, _trained(study, env, system, suffix))
        for suffix in _rates(study)
        for name, system in systems.items()
    ]
    histories = study.histories("11a", series, MANY_SEEDS)
    panels = _by_rates(study, histories)
    rounds = [round_ * STEPS for round_ in published.AGGREGATION_ROUNDS]
    marks = [Mark(name, "env_steps", rounds, values) for name, values in published.AGGREGATION.items()]
    marks += [
        Mark(name, "seconds", [second], [published.AGGREGATION[name][-1]])
        for name, second in published.AGGREGATION_SECONDS.items()
    ]
    title = f"Figure 11a: aggregation rules on Hopper ({', '.join(systems.values())})"
    curves(panels, dict.fromkeys(panels, marks), study.picture("11a"), title)
    claims = []
    for suffix, rates in _rates(study).items():
        ours = of(histories, env, f"Stellaris{suffix}")
        for name in list(systems)[1:]:
            other = of(histories, env, f"{name}{suffix}")
            paper = f"{published.AGGREGATION['Stellaris'][-1]} against {published.AGGREGATION[name][-1]}"
            text = f"Stellaris ends higher than {name} ({systems[name]}), {rates}"
            claims.append(more(text, paper, final(ours), final(other)))
    theirs = published.AGGREGATION_SECONDS
    ours = of(histories, env, "Stellaris")
    for name, claim in (("softsync", less), ("SSP", less), ("asynchronous", more)):
        text = f"Stellaris takes {'less' if claim is less else 'more'} time than {name}"
        paper = f"{theirs['Stellaris']} s against {theirs[name]} s"
        claims.append(claim(text, paper, seconds(ours), seconds(of(histories, env, name)), " s"))
    return claims


def truncation(study: Study) -> list[Claim]:
    """Fig. 11b: Hopper without truncation, and with each of our modes of Eq. 2."""
    env = "hopper"
    modes = {"weight": "stellaris", "surrogate": "surrogate", "artifact": "artifact", "without": "no-truncation"}
    series = [Series(name, env, variant(env, system)) for name, system in modes.items()]
    histories = study.histories("11b", series, MANY_SEEDS)
    marks = [
        *end_marks("weight", histories, published.TRUNCATION["with"]),
        *end_marks("without", histories, published.TRUNCATION["without"]),
    ]
    curves({"Hopper": histories}, {"Hopper": marks}, study.picture("11b"), "Figure 11b: truncation, in each mode")
    ends = {name: final(of(histories, env, name)) for name in modes}
    return [
        more(f"truncation (mode {name}) ends higher than none", "406 against 345", ends[name], ends["without"])
        for name in list(modes)[:-1]
    ]


def parameters(study: Study) -> list[Claim]:
    """Fig. 13: decay d, root v and threshold rho of Stellaris on Hopper, one at a time around the paper's choice."""
    paper = published.SENSITIVITY
    varied = [
        Parameter("system.rule_options.decay", "d", "0.96", list(paper["decay"]), paper["decay"]),
        Parameter("system.weight_options.root", "v", "3", list(paper["root"]), paper["root"]),
        Parameter("system.rho", "ρ", "1.0", list(paper["rho"]), paper["rho"]),
    ]
    title = "Figure 13: sensitivity of Stellaris on Hopper"
    return one_at_a_time(study, "13", title, variant("hopper", "stellaris"), varied, SEEDS)


def _rates(study: Study) -> dict[str, str]:
    """Compared learning rates, as in `RATES`."""
    return RATES if study.tuning else {"": RATES[""]}


def _by_rates(study: Study, histories: Sequence[History]) -> dict[str, list[History]]:
    """Histories by learning rate, for a panel each."""
    return {
        rates: [history for history in histories if history.series.endswith(TUNED) == (suffix == TUNED)]
        for suffix, rates in _rates(study).items()
    }


def _envs(histories: Iterable[History]) -> list[str]:
    """Environments of the histories, in the paper's order."""
    present = {history.env for history in histories}
    return [env for env in ENVS if env in present]


def _trained(study: Study, env: str, system: str, suffix: str, algorithm: str = "ppo") -> Variant:
    if suffix == TUNED:
        return tuned(study, env, system, algorithm)
    base = variant(env, system, algorithm)
    if suffix != SLOW:
        return base
    return base.with_settings("target", f"algorithm.options.target_interval={_versions(base)}")


def _versions(trained: Variant) -> int:
    """Mean number of versions of a round."""
    config = load_config([*trained.overrides])
    timeline = Timeline.of(config, seed=0)
    return round(sum(len(timeline.next_round().groups) for _ in range(config.rounds)) / config.rounds)


FIGURES: dict[str, Figure] = {
    "2": motivation,
    "3": staleness,
    **{figure: partial(comparison, figure=figure) for figure in ("6", "7")},
    "8": costs,
    **{figure: partial(comparison, figure=figure) for figure in ("9", "10")},
    "11a": ablation,
    "11b": truncation,
    "12": cluster,
    "13": parameters,
    "time": timing,
}
NOTES = {
    "6": "The summary of a run of PPO counts the time of a parameter function, which one learner does not need. The "
    "figure does not, so its seconds are fewer.",
}
"""Sentences on the claims of figures, for those who see both a run's summary and the figure."""
