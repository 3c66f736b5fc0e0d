"""Time and dollars of Stellaris beside its baselines, by what is counted: GPUs, functions, actors and truncation."""

from __future__ import annotations

from stellaris_jax.execute.loading import load_config
from studies.claims import Claim, less
from studies.hardware import AT_ONCE, ONE_VM, full_gpu, simulated
from studies.pictures import Bar, bars
from studies.stellaris.baselines import BASELINES, FULL_GPU
from studies.stellaris.study import variant
from studies.study import Study

SEEDS = 5
ENVS = ("hopper", "humanoid", "walker2d", "spaceinvaders")
TRUNCATION = 1.47
"""Time of a gradient with truncation, over that without (results/benchmarks/engine.json, CartPole)."""
OURS, COUNTED, PIPELINED = "Stellaris", ", truncation counted", ", pipelined actors"
"""Name of Stellaris, and suffixes: its gradients take the time of truncation; its actors collect while learners learn,
as IMPACT's do."""
BOTH_GPUS, NO_FUNCTION, ONE_MACHINE = ", both GPUs", ", no parameter function", ", one machine"
"""Suffixes: one learner has the two GPUs that Stellaris's eight have, without any loss; RLlib's two learners exchange
gradients in no time; one learner pays for the machine of its GPU alone."""
LIKE_PPO = (f"PPO{FULL_GPU}", f"PPO{BOTH_GPUS}", f"RLlib{FULL_GPU}", f"RLlib{FULL_GPU}{NO_FUNCTION}")
"""Baselines whose actors wait for learners, as those of the paper's Stellaris do."""
IMPACT = f"IMPACT{FULL_GPU}"

LABELS = {
    OURS: "Stellaris",
    f"{OURS}{COUNTED}": "… with truncation",
    **dict(zip(LIKE_PPO, ("PPO", "… both GPUs", "RLlib", "… free exchange"), strict=True)),
    f"{OURS}{PIPELINED}": "Stellaris, pipelined",
    f"{OURS}{PIPELINED}{COUNTED}": "… with truncation",
    IMPACT: "IMPACT, pipelined",
}
"""Systems of the picture, with short names."""


def timing(study: Study) -> list[Claim] | None:
    """Seconds and dollars of a run by what is counted; of timelines alone, so that nothing is trained."""
    envs = [env for env in ENVS if study.envs is None or env in study.envs]
    if not envs:
        return None
    seeds = range(study.seeds or SEEDS)
    spent = {
        env: {name: [simulated(tuple(settings), seed) for seed in seeds] for name, settings in _systems(env).items()}
        for env in envs
    }
    rows = [
        (env, name, seed, f"{expense.seconds:.5g}", f"{expense.dollars:.5g}")
        for env, systems in spent.items()
        for name, expenses in systems.items()
        for seed, expense in zip(seeds, expenses, strict=True)
    ]
    study.table("time", ("env", "system", "seed", "seconds", "cost_usd"), rows)
    seconds = {
        env: {name: [one.seconds for one in expenses] for name, expenses in systems.items()}
        for env, systems in spent.items()
    }
    panels = {
        env: [Bar(label, None, systems[name]) for name, label in LABELS.items()] for env, systems in seconds.items()
    }
    title = "Seconds of 50 rounds: how fast Stellaris is beside whole GPUs depends on what is counted"
    bars(panels, study.picture("time"), title, "seconds")
    pairs = [(f"{OURS}{counted}", rival) for counted in ("", COUNTED) for rival in LIKE_PPO]
    pairs += [(f"{OURS}{PIPELINED}{counted}", IMPACT) for counted in ("", COUNTED)]
    return [
        less(f"{env}: less time than {rival}: {ours}", "–", systems[ours], systems[rival], " s")
        for env, systems in seconds.items()
        for ours, rival in pairs
    ]


def _systems(env: str) -> dict[str, list[str]]:
    """Settings of each system, by name."""
    systems: dict[str, list[str]] = {}
    for name, algorithm, actors in ((OURS, "ppo", ()), (f"{OURS}{PIPELINED}", "impact", ("system.actors=pipelined",))):
        stellaris = [*variant(env, "stellaris", algorithm).overrides, *actors]
        counted = f"delays.learner.seconds={load_config(stellaris).delays.learner.seconds * TRUNCATION:.4g}"
        systems |= {name: stellaris, f"{name}{COUNTED}": [*stellaris, counted]}
    for name in ("PPO", "IMPACT", "RLlib"):
        algorithm, system, billed = BASELINES[name]
        trained = variant(env, system, algorithm)
        systems[name] = [*trained.overrides, *billed]
        systems[f"{name}{FULL_GPU}"] = [*systems[name], *full_gpu(trained)]
        if name != "RLlib":
            systems[f"{name}{FULL_GPU}{ONE_MACHINE}"] = [*systems[f"{name}{FULL_GPU}"], *ONE_VM]
    systems[f"PPO{BOTH_GPUS}"] = [*systems["PPO"], *full_gpu(variant(env, "central"), gpus=2)]
    systems[f"RLlib{FULL_GPU}{NO_FUNCTION}"] = [*systems[f"RLlib{FULL_GPU}"], *AT_ONCE]
    return systems
