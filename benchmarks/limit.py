"""How near a job comes to what this machine can do: its arithmetic and bytes, counted, and the machine's rates.

The limit is the roofline. A program with this arithmetic takes no less time than its operations at the rate of the
largest matrix product, or its bytes at the rate of arrays as large as the state of training. The second one,
at own shapes, has the matrix products at the rates they reach alone: small ones are far from the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import rates
from benchmarks.arithmetic import Product, Work, size, work_of
from benchmarks.own import THROUGHPUT
from benchmarks.parts import given_actions, profile, random_actions, single, waves
from stellaris_jax.engine import learner
from stellaris_jax.engine.keys import FragmentKeys
from stellaris_jax.engine.prepare import prepare
from stellaris_jax.engine.rollout import Fragment, RolloutInputs, init_actor, rollout
from stellaris_jax.envs.base import HostEnv
from stellaris_jax.execute.loading import load_config
from stellaris_jax.execute.simulated import planner_of
from stellaris_jax.execute.trainer import Trainer

Figures = dict[str, Any]

SYSTEMS = ("central", "stellaris")

SHARE, MOST = 0.01, 12
"""Products with at least this share of the operations in products are measured alone, and no more than so many."""
BESIDE = ("environment", "policy", "planning")
"""Parts that overlap with others: `planning` always, the other two on host environments."""


def limit(jobs: list[str], systems: list[str], repeats: int, note: Callable[[str], None]) -> Figures:
    """The machine's rates, and of each job under each system its work, its limits, its speed, and where its time goes.

    Args:
      jobs, systems: names in `THROUGHPUT` and `SYSTEMS`.
      repeats: timings of each part, of which medians are taken.
      note: told of every job.

    Raises ConfigError on another platform than a CPU.
    """
    machine = rates.machine()
    note(f"products {machine['product_flops_per_second'] / 1e9:.0f} GFLOP/s, copies (GB/s) {_gigabytes(machine)}")
    rows = []
    for job in jobs:
        for system in systems:
            rows.append(measure(job, [*THROUGHPUT[job], f"system={system}"], repeats, machine) | {"system": system})
            row = rows[-1]
            note(f"{job} {system}: {row['steps_per_second']:,.0f} steps/s, {row['share']:.1%} of the limit")
    return {"machine": machine, "jobs": rows}


def measure(job: str, overrides: list[str], repeats: int, machine: Figures) -> Figures:
    """The figures of one job.

    Args:
      job: its name.
      overrides: its configuration, of one member and one lane.
      repeats: timings of each part.
      machine: what `rates.machine` returned.
    """
    trainer = Trainer(load_config([*overrides, "total_steps=1e12", "evaluation.points=0"]))
    trainer.step()
    steps = len(planner_of(trainer.executor).next().rounds) * trainer.steps_per_round
    works, held = works_of(trainer), size(trainer.state)
    seconds = profile(trainer, repeats)
    spent = spent_of(seconds, trainer.spec.host_fragments)
    whole = sum(works.values(), Work())
    alone = products_alone(whole)
    limits = {
        "limit": rates.limit_seconds(machine, whole, held),
        "limit_at_own_shapes": own_seconds(machine, whole, held, alone),
    }
    return {
        "job": job,
        "env_steps_per_chunk": steps,
        "flops_per_step": whole.flops / steps,
        "share_of_flops_in_products": whole.product_flops / whole.flops,
        "bytes_per_step": whole.moved / steps,
        "state_bytes": held,
        "steps_per_second": steps / seconds["step"],
        **{f"{name}_steps_per_second": steps / least for name, least in limits.items()},
        "share": limits["limit"] / seconds["step"],
        "share_at_own_shapes": limits["limit_at_own_shapes"] / seconds["step"],
        "seconds_per_chunk": seconds,
        "parts": {
            name: {
                "seconds": taken,
                "share_of_time": taken / seconds["step"],
                "beside": name == "planning" or (trainer.spec.host_fragments and name in BESIDE),
                "flops_per_step": works.get(name, Work()).flops / steps,
                "limit_seconds": rates.limit_seconds(machine, works.get(name, Work()), held),
            }
            for name, taken in spent.items()
        },
        "products": [
            {
                "shapes": product.label,
                "flops_per_second": product.flops / taken,
                "share_of_flops": whole.products[product] * product.flops / whole.product_flops,
            }
            for product, taken in alone.items()
        ],
    }


def spent_of(seconds: dict[str, float], hosted: bool) -> dict[str, float]:
    """Seconds of a chunk by what they are spent on; those that are not `BESIDE` add up to a step.

    The key `rest` is of the program, and what its parts alone do not come to. They may be slower than within it, so it
    may be negative. The key `outside` is what a step takes longer than its program: records, calls, and waiting for
    planning and for host environments.
    """
    acting = {
        "environment": seconds["environment"],
        "policy": seconds["acting"] - seconds["environment"],
    }
    program = {
        "preparing": seconds["collecting"] - (0.0 if hosted else seconds["acting"]),
        "gradients": seconds["gradients"],
        "aggregation": seconds["aggregation"],
    }
    inside = program if hosted else acting | program
    return {
        **acting,
        **program,
        "rest": seconds["executing"] - sum(inside.values()),
        "outside": seconds["step"] - seconds["executing"],
        "planning": seconds["planning"],
    }


# Work -----------------------------------------------------------------------------------------------------------------


def works_of(trainer: Trainer) -> dict[str, Work]:
    """Work of a trainer's next chunk, by the names of `spent_of`; a host environment's is not counted.

    Final observations of truncated episodes, which the critic sees where there are any, are left out.
    """
    chunk = planner_of(trainer.executor).next()
    spec, network, options = trainer.spec, trainer.network, trainer.config.env
    plan, rounds = chunk.plans[0], len(chunk.rounds)
    hyper, state = single(trainer)
    key, space = jax.random.key(0), network.observation_space

    if isinstance(trainer.env, HostEnv):
        environment = Work()
        example = jax.tree.map(lambda x: x[0], trainer.source.example(1))
        totals = jnp.zeros((spec.steps, spec.envs, 3))
        fragment = example._replace(trajectory=example.trajectory._replace(totals=totals))
    else:
        env = trainer.env
        actor = init_actor(env, network, jax.random.split(key, spec.envs))
        environment = work_of(partial(given_actions, trainer, env), actor.env, key, random_actions(trainer, env))
        keys = FragmentKeys(key, jax.random.split(key, spec.envs))
        inputs = RolloutInputs(state.params, state.normalizers, actor, keys, hyper.gamma)
        trajectory = jax.eval_shape(partial(rollout, env, network, options, spec.steps), inputs)[1]
        fragment = Fragment(trajectory, state.params, state.normalizers, 0, actor.carry)
    policy = work_of(
        lambda params, obs, carry: network.act(network.unravel(params), obs, carry),
        state.params,
        jax.ShapeDtypeStruct((spec.envs, *space.shape), space.dtype),
        network.initial_carry(spec.envs),
    )

    def prepared(fragment: Fragment) -> Any:
        return prepare(network, hyper, options, fragment, state.normalizers, spec.recipe)

    samples = jax.eval_shape(prepared, fragment)[0]
    # Nothing of it is a product or indexed, so it counts as fused; but it is all written and read once.
    data = Work(moved=2 * size(fragment.trajectory) + size(samples))
    return {
        "environment": environment * rounds,
        "policy": policy * (rounds * spec.steps),
        "preparing": (work_of(prepared, fragment) + data) * rounds,
        "gradients": gradient_work(trainer) * int(np.count_nonzero(plan.weights)),
        "aggregation": aggregation_work(trainer),
    }


def gradient_work(trainer: Trainer) -> Work:
    """One gradient, with as many versions in flight beside its own as the next chunk's have on average."""
    plan = planner_of(trainer.executor).next().plans[0]
    hyper, state = single(trainer)
    peers = plan.invocations.peers
    trips = 0.0 if peers is None else float(peers.number[plan.weights > 0].mean())
    gradient = partial(learner.gradient, trainer.network, trainer.spec, hyper, state.cache())
    return work_of(gradient, jax.tree.map(lambda x: x[0, 0, 0], plan.invocations), trips=trips)


def aggregation_work(trainer: Trainer) -> Work:
    """The aggregation of all waves of the next chunk, of which some complete a group and move the optimizer."""
    plan = planner_of(trainer.executor).next().plans[0]
    hyper, state = single(trainer)
    completing = int(np.count_nonzero(plan.sizes))

    def update(gradients: Any, weights: Any, size: Any) -> Any:
        aggregator = trainer.engine.aggregator(hyper)
        return aggregator.update(gradients, state.aggregator, state.params, weights=weights, size=size)

    arguments = (state.params[None], plan.weights[0, 0], plan.sizes[0, 0])
    holding, whole = (work_of(update, *arguments, pick=pick) for pick in (min, max))
    # All elementwise, but arrays are read and written once: gradient and sum; optimizer, parameters, and the ring.
    summed = Work(moved=3 * size(state.params))
    moved = Work(moved=2 * size(state.aggregator.inner) + 3 * size(state.params))
    return holding * (waves(trainer) - completing) + whole * completing + summed * waves(trainer) + moved * completing


def products_alone(work: Work) -> dict[Product, float]:
    """Seconds of the products with most of the operations, each measured alone."""
    spent = {product: times * product.flops for product, times in work.products.items()}
    largest = sorted(spent, key=lambda product: -spent[product])[:MOST]
    return {
        product: rates.product_seconds(product) for product in largest if spent[product] >= SHARE * work.product_flops
    }


def own_seconds(machine: Figures, work: Work, held: float, alone: dict[Product, float]) -> float:
    """The roofline where the products measured alone take the seconds they took."""
    products = sum(work.products[product] * taken for product, taken in alone.items())
    others = work.flops - sum(work.products[product] * product.flops for product in alone)
    operations = products + others / machine["product_flops_per_second"]
    return max(operations, work.moved / rates.bytes_per_second(machine, held))


# Tables ---------------------------------------------------------------------------------------------------------------


def rows(result: Figures) -> list[dict[str, str]]:
    """A row per job: its work per env step, its limits and its speed."""
    return [
        {
            "job": row["job"],
            "system": row["system"],
            "FLOP/step": f"{row['flops_per_step']:,.0f}",
            "in products": f"{row['share_of_flops_in_products']:.0%}",
            "bytes/step": f"{row['bytes_per_step']:,.0f}",
            "limit, steps/s": f"{row['limit_steps_per_second']:,.0f}",
            "at own shapes": f"{row['limit_at_own_shapes_steps_per_second']:,.0f}",
            "measured": f"{row['steps_per_second']:,.0f}",
            "share": f"{row['share']:.1%}",
            "of own shapes": f"{row['share_at_own_shapes']:.1%}",
        }
        for row in result["jobs"]
    ]


def part_rows(result: Figures) -> list[dict[str, str]]:
    """A row per job and part of its time; parts that are done beside others are in brackets."""
    return [
        {
            "job": row["job"],
            "system": row["system"],
            "part": f"({name})" if part["beside"] else name,
            "ms/chunk": f"{1e3 * part['seconds']:,.1f}",
            "of the time": f"{part['share_of_time']:.0%}",
            "FLOP/step": f"{part['flops_per_step']:,.0f}" if part["flops_per_step"] else "",
            "of its limit": _share(part["limit_seconds"], part["seconds"]),
        }
        for row in result["jobs"]
        for name, part in row["parts"].items()
    ]


def _share(least: float, seconds: float) -> str:
    # What is a difference of parts measured apart may be nothing or less.
    return f"{least / seconds:.1%}" if 0.0 < least < seconds else ""


def _gigabytes(machine: Figures) -> str:
    of_sizes = machine["bytes_per_second"].items()
    return ", ".join(f"{int(size) / 2**20:g} MiB: {rate / 1e9:.0f}" for size, rate in of_sizes)
