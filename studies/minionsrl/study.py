"""Evaluation of "MinionsRL" (AAAI'24) on our engine: training runs, figures, and the paper's claims.

A round takes as long and costs as much as the paper's, but has a sixteenth of its samples and gradients. 50 rounds of
the paper's 65,536 steps would take two cores a day for every curve. The targets fit so small a job, and were set before
any training. Runs go on after they have reached them, so that the time to the target is read off the evaluations. A
round's own mean return, by which a job would end, is that of a single episode if there are few actors. The scheduler is
the one that ships with the package. It was trained on CartPole, and is used unchanged on the other tasks.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path

import numpy as np

from stellaris_jax.base import inputs
from stellaris_jax.base.outputs import write_atomically
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.run import enable_compile_cache
from stellaris_jax.many.scheduler_job import TRAINING, JobEnv, make
from stellaris_jax.many.scheduler_training import Choice, constant, random, run_jobs, scheduled, train_scheduler
from stellaris_jax.timeline.scaling.scheduler import Scheduler
from studies import published
from studies.builds import current_build
from studies.claims import Claim, less, more, undecided
from studies.history import History, Series, alike, cost, final, of, until
from studies.pictures import Bar, Mark, bars, curves, widths
from studies.study import Figure, Study
from studies.training import Variant

SEEDS = 5
SCALE = 16
"""Factor by which a round has fewer samples than the paper's."""
TARGETS = {"cartpole": 475, "hopper": 250, "humanoid": 300, "halfcheetah": 600}
ENVS = tuple(TARGETS)
RULES: dict[str, tuple[str, ...]] = {
    "MinionsRL": ("scaling=minionsrl",),
    "Max": ("scaling=max",),
    "Adapt": ("scaling=adapt",),
    "IMPACT": (
        "scaling=max",
        "system=impact",
        "system.actors=pipelined",
        "algorithm=impact",
        "algorithm.learning_rate=5e-4",
        "algorithm.options.clip=0.4",
        "algorithm.kl_coefficient=1.0",
        "algorithm.entropy_coefficient=0.01",
        "algorithm.options.target_interval=1",
    ),
}
"""Rules by their names in the figures; IMPACT with the values of SC'24's Table III, on MuJoCo only."""
SERVERFUL = ("system.learner_billing=serverful", "system.actor_billing=serverful")
"""Bill of the paper's Azure ML, whose fixed number of actors is the maximum."""
JOBS = {"cartpole": ("cartpole", 475.0), "catch": ("Catch-bsuite", 0.9)}
"""Training jobs of schedulers: an environment of gymnax, and the job's target return."""
EPISODES, FINE_TUNING, COMPARED = 100, 10, 16
"""Jobs of a pre-training and of a fine-tuning, as in the paper, and jobs to compare schedulers on."""


def variant(env: str, rule: str) -> Variant:
    """Variant of a rule on an environment, for 50 rounds (245 on CartPole)."""
    if env == "cartpole":
        task = ["env=gymnax/cartpole", "system=minionsrl", "scaling.budget=0.5"]
    else:
        paper = load_config([f"experiment=minionsrl/{env}"])
        task = [
            f"experiment=minionsrl/{env}",
            f"algorithm.rollout_length={paper.algorithm.rollout_length // SCALE}",
            f"algorithm.minibatches={paper.algorithm.minibatches // SCALE}",
            f"delays.learner.seconds={SCALE * paper.delays.learner.seconds:.4g}",
            f"total_steps={paper.total_steps // SCALE}",
        ]
    goal = (f"scaling.target={TARGETS[env]}", "scaling.ends=false", "evaluation.points=50")
    return Variant(f"{env}/{rule.lower()}", (*task, *goal, *RULES[rule]))


def comparison(study: Study) -> list[Claim]:
    """Fig. 4 and Table 2: return against time and dollars, and time and dollars to the target return."""
    series = []
    for env in study.envs or ENVS:
        rules = [rule for rule in RULES if rule != "IMPACT" or env != "cartpole"]
        series += [Series(rule, env, variant(env, rule)) for rule in rules]
        if env != "cartpole":
            series.append(Series("Azure ML", env, variant(env, "Max"), SERVERFUL))
    histories = study.histories("4", series, SEEDS)
    panels = {
        env: [history for history in histories if history.env == env]
        for env in ENVS
        if any(history.env == env for history in histories)
    }
    marks = {env: [*_marks(env, members)] for env, members in panels.items()}
    curves(panels, marks, study.picture("4"), "Figure 4: MinionsRL and others")
    drawn = ("MinionsRL", "Max", "Adapt")
    actors = {env: study.actors({rule: variant(env, rule) for rule in drawn}, SEEDS) for env in panels}
    widths(actors, study.picture("4_actors"), "Actors of each round")
    return [claim for env, members in panels.items() for claim in _claims(env, members)]


def _marks(env: str, histories: Sequence[History]) -> Iterator[Mark]:
    """Ends of the paper's runs (Table 2), drawn at our target; its dollars follow from no prices that it names."""
    names = {history.series for history in histories}
    for name, (time_, _) in published.MINIONSRL_ENDS.get(env, {}).items():
        if name in names:
            yield Mark(name, "seconds", [time_], [TARGETS[env]])


def _claims(env: str, histories: Sequence[History]) -> Iterator[Claim]:
    """Claims of MinionsRL against every other series of an environment."""
    ours, theirs = of(histories, env, "MinionsRL"), published.MINIONSRL_ENDS.get(env, {})
    for rival in dict.fromkeys(history.series for history in histories):
        if rival == "MinionsRL":
            continue
        other, text = of(histories, env, rival), f"{env}: MinionsRL"
        time_, money = "–", "–"
        if rival in theirs:
            (a, b), (c, d) = theirs["MinionsRL"], theirs[rival]
            time_, money = f"{a} s against {c} s", f"${b:.1f} against ${d:.1f}"
        for axis, paper, what, unit in (("seconds", time_, "time", " s"), ("cost_usd", money, "dollars", "$")):
            spent = until(ours, axis, TARGETS[env]), until(other, axis, TARGETS[env])
            claim = f"{text} takes less {what} to {TARGETS[env]} than {rival}"
            if np.isfinite(spent).all():
                yield less(claim, paper, spent[0], spent[1], unit)
            else:
                came = " against ".join(f"{np.isfinite(s).sum()} of {len(s)}" for s in spent)
                yield undecided(claim, paper, f"reached by {came} seeds")
        yield more(f"{text} ends higher than {rival}", "–", final(ours), final(other))
        yield less(f"{text} costs less than {rival}, all rounds", "–", cost(ours), cost(other), "$")
        yield more(f"{text} is higher than {rival} after the same dollars", "–", *alike(ours, other, "cost_usd"))


def schedulers(study: Study) -> list[Claim]:
    """§5.5: seconds on this machine to train a scheduler from nothing and from another job's scheduler.

    Their objectives are compared on jobs that no training used.
    """
    current_build().measure()
    root = study.runs / f"schedulers-{EPISODES}-{FINE_TUNING}-{COMPARED}"
    enable_compile_cache()
    times: dict[str, list[float]] = {}
    gains: dict[tuple[str, str], list[float]] = {}
    for seed in range(study.seeds or SEEDS):
        taken, chosen = _trainings(root, seed)
        for name, seconds in taken.items():
            times.setdefault(name, []).append(seconds)
        for (job, name), choose in chosen.items():
            gain = _remembered(root / f"{job}-{name.replace(' ', '-')}-{seed}.json", partial(_gain, job, choose, seed))
            gains.setdefault((job, name), []).append(gain)
    rows = [("seconds", name, seed, f"{x:.4g}") for name, values in times.items() for seed, x in enumerate(values)]
    rows += [(*key, seed, f"{gain:.5g}") for key, values in gains.items() for seed, gain in enumerate(values)]
    study.table("schedulers", ("of", "what", "seed", "value"), rows)
    panels = {"seconds of training": [Bar(name, None, values) for name, values in times.items()]}
    for job in JOBS:
        short = [Bar(name, None, [-gain for gain in values]) for (of_, name), values in gains.items() if of_ == job]
        panels[f"{job}: short of its objective"] = short
    title = "Schedulers: what their training takes, and what they are worth"
    bars(panels, study.picture("schedulers"), title, "less is better")
    return [*_value_claims(times, gains)]


def _trainings(root: Path, seed: int) -> tuple[dict[str, float], dict[tuple[str, str], Choice]]:
    """Seconds of trainings by name, and choosers of actors by job and name."""
    home, other = JOBS
    first, tuned, fresh = (root / f"{name}-{seed}.npz" for name in (home, f"{other}-tuned", other))
    seconds = {
        "pre-training": _trained(first, home, seed, EPISODES),
        "fine-tuning": _trained(tuned, other, seed, FINE_TUNING, first),
        "pre-training anew": _trained(fresh, other, seed, EPISODES),
    }
    learned = scheduled(Scheduler.load(first))
    chosen = {
        (home, "pre-trained"): learned,
        (other, "carried over"): learned,
        (other, "fine-tuned"): scheduled(Scheduler.load(tuned)),
        (other, "pre-trained"): scheduled(Scheduler.load(fresh)),
    }
    for job in JOBS:
        most = _env(job).limits.maximum
        chosen |= {(job, "random"): random(most), (job, "all actors"): constant(most)}
        chosen[job, "a quarter of them"] = constant(most // 4)
    return seconds, chosen


def _value_claims(times: dict[str, list[float]], gains: dict[tuple[str, str], list[float]]) -> Iterator[Claim]:
    """Claims of fine-tuning against training from nothing, and of each scheduler against untrained choosers."""
    home, other = JOBS
    hours = published.MINIONSRL_TRAINING_HOURS
    paper = f"{hours['fine-tuning']} h against {hours['pre-training']} h"
    text = "fine-tuning takes less time than pre-training"
    yield less(text, paper, times["fine-tuning"], times["pre-training anew"], " s")
    for job, name in ((home, "pre-trained"), (other, "pre-trained"), (other, "fine-tuned"), (other, "carried over")):
        for rival in ("random", "all actors", "a quarter of them"):
            text = f"{job}: a {name} scheduler reaches more of its objective than {rival}"
            yield more(text, "–", gains[job, name], gains[job, rival])


@cache
def _env(job: str) -> JobEnv:
    return make(TRAINING, _job(job))


def _job(job: str) -> list[str]:
    env, target = JOBS[job]
    return [f"env=gymnax/{env}", f"scaling.target={target}"]


def _trained(path: Path, job: str, seed: int, jobs: int, start: Path | None = None) -> float:
    """Real seconds of training the scheduler at `path`, which is trained now if it is missing."""

    def train() -> float:
        _warm(job)
        begin = time.perf_counter()
        scheduler, _ = train_scheduler(_job(job), jobs, seed, Scheduler.load(start) if start else None)
        scheduler.save(path)
        return time.perf_counter() - begin

    return _remembered(path.with_suffix(".seconds.json"), train)


@cache
def _warm(job: str) -> None:
    """Compile the programs of training on a job, so that no measured training includes that."""
    train_scheduler(_job(job), 1)


def _gain(job: str, choose: Choice, seed: int) -> float:
    """Mean sum of a scheduler's rewards over jobs that no training used."""
    return float(run_jobs(_env(job), choose, COMPARED, seed=10_000 + seed).gain.mean())


def _remembered(path: Path, make: Callable[[], float]) -> float:
    """Cached result of `make`, in the file at `path`."""
    if not path.is_file():
        print(f"making {path}", flush=True)
        write_atomically(path, json.dumps(make()))
    return float(json.loads(inputs.read_text(path)))


FIGURES: dict[str, Figure] = {"4": comparison, "schedulers": schedulers}
