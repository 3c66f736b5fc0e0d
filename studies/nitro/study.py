"""Evaluation of "Nitro" (VLDB'25) on our engine: training runs, figures, and the paper's claims with each.

MuJoCo and PPO. All systems have the same learner VM, actors on Lambda, and minibatches of the same size; a round of I
actors trains on the data of I actors. The systems differ in the number of actors of a round.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp

from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.trainer import Trainer
from studies import published
from studies.builds import current_build
from studies.claims import Claim, less, more
from studies.history import History, Series, alike, cost, final, of, seconds
from studies.pictures import Bar, Mark, bars, curves, widths
from studies.sensitivity import Parameter, one_at_a_time
from studies.study import Figure, Study
from studies.training import Variant

SEEDS = 5
ENVS = ("hopper", "humanoid", "walker2d")
RULES: dict[str, tuple[str, ...]] = {
    "Nitro": ("scaling=nitro",),
    "without boosting": ("scaling=fixed", "scaling.actors=16"),
    "all actors": ("scaling=max",),
    "Hydrozoa": ("scaling=hydrozoa",),
    "KungFu": ("scaling=kungfu",),
    "KungFu's code": ("scaling=kungfu", "scaling.options.mode=artifact"),
    "MinionsRL": ("scaling=minionsrl", "scaling.target=300", "scaling.budget=0.5", "scaling.ends=false"),
    "Nitro's code": ("scaling=nitro", "scaling.options.mode=artifact"),
}
"""Rules by their names in the figures.

MinionsRL's scheduler is the one that ships, trained on CartPole; its state has shares of a return and of dollars as in
Nitro's Fig. 17. "Code" is the released code of Nitro for a rule. For Nitro itself, that is its score, window, floor and
Hessian, with as many Lanczos steps on as many samples as Nitro takes here.
"""
STELLARIS = ("system=stellaris", "system.learners=4", "system.actor_billing=serverless")
"""Stellaris on Nitro's testbed, whose GPU holds four learner functions, each as fast as Nitro's one learner."""
SHARED = ("platform.contention=1",)
"""Slowdown of learner functions on one GPU as if it bound them all: four together are as fast as one."""
BY_USE = {
    "": ("system.learner_billing=serverless",),
    ", shared GPU": ("system.learner_billing=serverless", "platform.slots_per_gpu=1", "prices.learner_vm_slots=1"),
}
"""Bills of Nitro's one learner by use, as Stellaris's functions are billed.

It is billed as one of four functions of a GPU where each of those is as fast as it is, and else as the only one.
"""
SERVERFUL = ("system.actor_billing=serverful", "prices.actor_vms=1", "prices.actor_vm_slots=64")
"""Bill of 16 actors on the 16 cores of one VM, by wall-clock (its functions' shares only split it into items)."""


def variant(env: str, rule: str, *settings: str) -> Variant:
    """Variant of a rule on an environment with the paper's hyper-parameters, for 50 rounds."""
    name = rule.lower().replace(" ", "-").replace("'", "")
    return Variant(f"{env}/{name}", (f"experiment=nitro/{env}", *RULES[rule], *settings))


def boosting(study: Study) -> list[Claim]:
    """Fig. 10 and 14 for PPO: a fixed number of actors and Nitro, on each environment."""
    envs = study.envs or ENVS
    names = ("PPO", "PPO + Nitro")
    series = []
    for env in envs:
        series += [
            Series(names[0], env, variant(env, "without boosting"), SERVERFUL),
            Series(names[1], env, variant(env, "Nitro")),
        ]
    histories = study.histories("10", series, SEEDS)
    claims, panels = [], {}
    for env in dict.fromkeys(history.env for history in histories):
        base, ours = (of(histories, env, name) for name in names)
        panels[env] = [*base, *ours]
        ratio, before, after = published.NITRO_ENDS[env]
        text, paper = f"PPO on {env}: Nitro", f"${after:.2f} against ${before:.2f}"
        claims.append(more(f"{text} ends higher", f"{ratio:.1f} times", final(ours), final(base)))
        claims.append(less(f"{text} takes less time", "–", seconds(ours), seconds(base), " s"))
        claims.append(less(f"{text} costs less", paper, cost(ours), cost(base), "$"))
        claims += _alike(text, ours, base)
    curves(panels, {}, study.picture("10"), "Figure 10: PPO with 16 actors, and with Nitro")
    return claims


def rules(study: Study) -> list[Claim]:
    """Fig. 15: rules that scale actors, with their returns and dollars, on Hopper."""
    env = "hopper"
    series = [Series(name, env, variant(env, name)) for name in RULES]
    histories = study.histories("15", series, SEEDS)
    curves({"Hopper": histories}, {}, study.picture("15"), "Figure 15: rules that scale actors, Hopper")
    actors = study.actors({curve.name: curve.variant for curve in series}, SEEDS)
    widths({"": actors}, study.picture("15_actors"), "Actors of each round, Hopper")
    ours = of(histories, env, "Nitro")
    claims = []
    for name, dollars in published.NITRO_SCALING.items():
        if name != "Nitro":
            other = of(histories, env, name)
            paper = f"${published.NITRO_SCALING['Nitro']:.2f} against ${dollars:.2f}"
            claims.append(less(f"Nitro costs less than {name}", paper, cost(ours), cost(other), "$"))
    for name in list(RULES)[1:]:
        other = of(histories, env, name)
        claims.append(more(f"Nitro ends higher than {name}", "–", final(ours), final(other)))
        claims += _alike("Nitro", ours, other, f" than {name}")
    return claims


def _alike(text: str, ours: Sequence[History], other: Sequence[History], rival: str = "") -> list[Claim]:
    """Claims about the returns of two curves after equal expense."""
    return [
        more(f"{text} is higher{rival} after the same {what}", "–", *alike(ours, other, axis))
        for axis, what in (("seconds", "time"), ("cost_usd", "dollars"))
    ]


def parameters(study: Study) -> list[Claim]:
    """Fig. 16: decay d and window n on Hopper, one at a time around the paper's choice."""
    paper = published.NITRO_SENSITIVITY
    varied = [
        Parameter("scaling.options.decay", "d", "0.96", ("0.93", "0.96", "0.99"), paper["decay"]),
        Parameter("scaling.options.window", "n", "6", ("3", "6", "10"), paper["window"]),
    ]
    title = "Figure 16: sensitivity of Nitro on Hopper"
    return one_at_a_time(study, "16", title, variant("hopper", "Nitro"), varied, SEEDS)


def ablation(study: Study) -> list[Claim]:
    """Fig. 17: Nitro on Hopper without boosting, and with actors on VMs that are paid by wall-clock."""
    env, full = "hopper", variant("hopper", "Nitro")
    series = [
        Series("Nitro", env, full),
        Series("without boosting", env, variant(env, "without boosting")),
        Series("without serverless", env, full, ("system.actor_billing=serverful",)),
    ]
    histories = study.histories("17", series, SEEDS)
    ends = published.NITRO_ABLATION
    marks = [
        Mark(name, axis, [getattr(end, field)], [end.reward])
        for name, end in ends.items()
        for axis, field in (("seconds", "seconds"), ("cost_usd", "dollars"))
    ]
    curves({"Hopper": histories}, {"Hopper": marks}, study.picture("17"), "Figure 17: Nitro without its parts")
    ours, plain, serverful = (of(histories, env, curve.name) for curve in series)
    return [
        more("boosting ends higher", "385 against 274", final(ours), final(plain)),
        less("boosting takes less time", "122 s against 136 s", seconds(ours), seconds(plain), " s"),
        more("boosting costs more", "$0.50 against $0.32", cost(ours), cost(plain), "$"),
        less("actors on Lambda cost less", "$0.50 against $1.20", cost(ours), cost(serverful), "$"),
    ]


def together(study: Study) -> list[Claim]:
    """Both papers at once: Stellaris's learners and Nitro's actors against either alone, on Nitro's testbed."""
    envs = study.envs or ("hopper",)
    series = []
    for env in envs:
        series.append(Series("Nitro", env, variant(env, "Nitro")))
        for suffix, settings in BY_USE.items():
            series.append(Series(f"Nitro, by use{suffix}", env, variant(env, "Nitro"), settings))
        for suffix, settings in (("", ()), (", shared GPU", SHARED)):
            label = "stellaris" + suffix.replace(", ", "-").replace(" ", "-").lower()
            for name, rule in (("Stellaris", "without boosting"), ("Stellaris + Nitro", "Nitro")):
                trained = variant(env, rule, *STELLARIS, *settings).with_settings(label)
                series.append(Series(f"{name}{suffix}", env, trained))
    histories = study.histories("together", series, SEEDS)
    panels, claims = {}, []
    for env in dict.fromkeys(history.env for history in histories):
        drawn = [history for history in histories if not history.series.startswith("Nitro, by use")]
        panels[env] = [history for history in drawn if history.env == env]
        for suffix in ("", ", shared GPU"):
            both, text = of(histories, env, f"Stellaris + Nitro{suffix}"), f"{env}: Stellaris + Nitro{suffix}"
            for name in ("Nitro", f"Stellaris{suffix}"):
                alone = of(histories, env, name)
                claims.append(more(f"{text} ends higher than {name}", "–", final(both), final(alone)))
                claims.append(less(f"{text} takes less time than {name}", "–", seconds(both), seconds(alone), " s"))
                claims.append(less(f"{text} costs less than {name}", "–", cost(both), cost(alone), "$"))
                claims += _alike(text, both, alone, f" than {name}")
            used = of(histories, env, f"Nitro, by use{suffix}")
            claims.append(
                less(f"{text} costs less than Nitro's learner billed by use", "–", cost(both), cost(used), "$")
            )
    curves(panels, {}, study.picture("together"), "Stellaris's learners and Nitro's actors")
    return claims


def detection(study: Study) -> list[Claim]:
    """Fig. 20 and §5.3: real seconds of a detection on this machine, on a minibatch and on the whole batch."""
    current_build().measure()
    repeats = study.seeds or SEEDS
    rows, panel, claims = [], [], []
    for env in study.envs or ("hopper",):
        measured: dict[str, list[float]] = {}
        for name, subsample in (("sub-sampled", 1), ("whole batch", 0)):
            overrides = [f"experiment=nitro/{env}", f"scaling.options.subsample={subsample}", "scaling.actors=16"]
            trainer = Trainer(load_config(overrides))
            trainer.run(1)
            trainer.close()
            assert trainer.probe is not None
            count, times = jnp.array([trainer.spec.minibatch_layout.count(16)]), []
            for _ in range(repeats):
                begin = time.perf_counter()
                jax.block_until_ready(trainer.probe(trainer.seed_states.hyper, trainer.state, jnp.int32(0), count))
                times.append(time.perf_counter() - begin)
            measured[name] = times
            paper = published.NITRO_DETECTION[name]
            rows += [(env, name, paper, f"{value:.4g}") for value in times]
            panel.append(Bar(f"{env}\n{name}", paper, times))
        text = f"{env}: sub-sampling makes detection faster"
        claims.append(less(text, "0.4 s against 5 s", measured["sub-sampled"], measured["whole batch"], " s"))
    study.table("20", ("env", "what", "paper_seconds", "seconds"), rows)
    bars({"detection": panel}, study.picture("20"), "Figure 20: one detection (theirs on a V100)", "seconds")
    return claims


FIGURES: dict[str, Figure] = {
    "10": boosting,
    "15": rules,
    "16": parameters,
    "17": ablation,
    "20": detection,
    "together": together,
}
