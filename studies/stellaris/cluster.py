"""Figure 12 of "Stellaris" (SC'24): PAR-RL without and with Stellaris, on the HPC testbed."""

from __future__ import annotations

from stellaris_jax.execute.loading import load_config
from studies import published
from studies.claims import Claim, less, more
from studies.hardware import full_gpu
from studies.history import History, Series, alike, common_cost, cost, final, of, seconds
from studies.pictures import TUNED, Mark, curves, end_marks
from studies.stellaris.baselines import FULL_GPU
from studies.stellaris.study import RATES, TUNED_ON, best, variant
from studies.study import Study
from studies.training import Variant

SEEDS = 5
BASELINE, OURS = "PAR-RL", "PAR-RL + Stellaris"
SYSTEMS = {
    BASELINE: ("par-rl", ("system.learners=16",)),
    OURS: ("stellaris", ("system.learners=64", "system.versions=96")),
}
"""Systems: one learner for each of the testbed's 16 GPUs, and one for each of its 64 slots."""
LARGER = 4
"""Env steps and minibatches of a round, over those on the regular testbed."""


def cluster(study: Study) -> list[Claim] | None:
    """Fig. 12: PAR-RL without and with Stellaris on the HPC testbed; without `--untuned` also at rates tuned on it."""
    envs = [env for env in published.CLUSTER if study.envs is None or env in study.envs]
    if not envs:
        return None
    rates = {"": "the paper's rate", **({TUNED: "tuned rates"} if study.tuning else {})}
    series = []
    for env in envs:
        for suffix in rates:
            first, second = (_chosen(study, env, name) if suffix else trained(env, name) for name in SYSTEMS)
            series.append(Series(f"{BASELINE}{suffix}", env, first))
            series.append(Series(f"{BASELINE}{FULL_GPU}{suffix}", env, first, full_gpu(first)))
            series.append(Series(f"{OURS}{suffix}", env, second))
    histories = study.histories("12", series, SEEDS)
    panels: dict[str, list[History]] = {}
    marks: dict[str, list[Mark]] = {}
    claims = []
    for env in dict.fromkeys(history.env for history in histories):
        theirs = published.CLUSTER[env]
        for suffix, name in rates.items():
            base, whole, ours = (
                of(histories, env, f"{which}{suffix}") for which in (BASELINE, f"{BASELINE}{FULL_GPU}", OURS)
            )
            panel = f"{env}, {name}"
            panels[panel] = [*base, *whole, *ours]
            marks[panel] = [*end_marks(BASELINE, base, theirs[0]), *end_marks(OURS, ours, theirs[1])]
            paper = f"{theirs[1].reward} against {theirs[0].reward}"
            claims.append(more(f"{BASELINE} on {panel}: Stellaris ends higher", paper, final(ours), final(base)))
        ours = of(histories, env, OURS)
        for rival in (BASELINE, f"{BASELINE}{FULL_GPU}"):
            base = of(histories, env, rival)
            where = f"{rival} on {env}: Stellaris"
            paper = f"{theirs[1].seconds} s against {theirs[0].seconds} s"
            claims.append(less(f"{where} takes less time", paper, seconds(ours), seconds(base), " s"))
            paper = f"${theirs[1].dollars:.2f} against ${theirs[0].dollars:.2f}"
            claims.append(less(f"{where} costs less, each by its own rule", paper, cost(ours), cost(base), "$"))
            common = common_cost(ours), common_cost(base)
            claims.append(less(f"{where} costs less, at the common price", paper, *common, "$"))
            for axis, what in (("seconds", "time"), ("cost_usd", "dollars, each by its own rule")):
                claims.append(more(f"{where} is higher after the same {what}", "–", *alike(ours, base, axis)))
    curves(panels, marks, study.picture("12"), "Figure 12: PAR-RL without and with Stellaris, HPC testbed")
    return claims


def trained(env: str, name: str, rate: str = "") -> Variant:
    """Variant of one of `SYSTEMS` on the testbed, with the paper's learning rate or another one."""
    system, learners = SYSTEMS[name]
    base = variant(env, system, rate=rate)
    steps = LARGER * load_config([*base.overrides]).total_steps
    large = ("platform=hpc", "prices=hpc", "env.num_envs=64", "algorithm.minibatches=16", f"total_steps={steps}")
    return base.with_settings("hpc", *large, *learners)


def _chosen(study: Study, env: str, name: str) -> Variant:
    """Variant at the best learning rate of the grid, chosen on the tuning seeds."""
    home = TUNED_ON.get(env, env)
    candidates = {trained(home, name, rate): rate for rate in RATES["ppo"]}
    return trained(env, name, candidates[best(study, list(candidates))])
