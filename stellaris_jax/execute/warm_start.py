"""Warm start: a policy that has imitated an environment's demonstrations before the first round.

The result is cached on disk by a digest of its program and seed, as arrays.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris_jax.agent.networks import PolicyNetwork, normalizer
from stellaris_jax.agent.networks.recurrent import Past
from stellaris_jax.base.checked_files import read_checked, write_checked
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.machine import Part, check_fits
from stellaris_jax.base.outputs import cache_folder
from stellaris_jax.config.tree import Config
from stellaris_jax.engine.keys import SeedKeys, folded
from stellaris_jax.runs.start import Start, is_under_way
from stellaris_jax.telemetry.format import duration

WORD = 4
"""Bytes of a number."""
STREAM = 0xDE
"""Number that separates the keys of demonstrations from others."""
PARTS = 20
"""Parts of a warm start, after each of which it may be told how long the rest takes."""
PATIENCE = 15.0
"""Fewest seconds between such sentences."""
_ALONE = threading.Lock()
"""Lock by which points of a sweep do not imitate the same demonstrations beside each other."""


def warm_started(
    config: Config, env: Any, network: PolicyNetwork, working: Callable[[str], None], abandon: Callable[[], None]
) -> Start | None:
    """Start of every seed that `warm_start` asks for; `None` without one.

    Args:
      config: configuration of the run.
      env, network: its environment and network.
      working: told of each seed whose policy is not on disk, before it is trained.
      abandon: called between parts of the work; may raise to end it.

    Raises:
      ConfigError: the environment has no demonstrations, or imitation ends in parameters that are not finite.
    """
    if not config.warm_start.updates or is_under_way(config):
        return None
    if not hasattr(env, "demonstrations"):
        raise ConfigError(
            f"warm_start.updates={config.warm_start.updates} needs an environment with demonstrations, such as "
            f"tokens/..., which env.name={config.env.name} has not; accepted: 0."
        )
    seeds = range(config.seed, config.seed + config.num_seeds)
    imitation = Imitation.of(config, env, network)
    digest = hashlib.sha256(f"{jax.__version__} {jax.default_backend()} {imitation.text}".encode()).hexdigest()
    rows, compiled, root = [], None, cache_folder()
    for seed in seeds:
        place = None if root is None else root / "warm_starts" / f"{digest[:40]}-{seed}"
        with _ALONE:
            params = _stored(place, network)
            if params is None:
                working(f"warm start of seed {seed}: {config.warm_start.updates} updates on demonstrations")
                compiled = compiled or _compiled(imitation.steps, config)
                params = _imitated(imitation, compiled, seed, config.warm_start.updates, working, abandon)
                if not np.isfinite(params).all():
                    raise ConfigError(
                        f"warm_start.learning_rate={config.warm_start.learning_rate:g} ends in parameters that are not "
                        f"finite, with seed {seed}; accepted: a lower one."
                    )
                if place is not None:
                    with suppress(OSError):
                        place.parent.mkdir(parents=True, exist_ok=True)
                    write_checked(place, params.astype("<f4").tobytes())
        rows.append(params)
    statistics = normalizer.init(network.observation_space.shape)
    return Start(np.stack(rows), jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], len(seeds), axis=0), statistics))


class Imitation(NamedTuple):
    """Programs that imitate demonstrated actions, by Adam on their cross-entropy.

    Attributes:
      begin: parameters `[P]` and optimizer state of a seed, before the first update.
      steps: the same after the updates of a range: `(seed, before, first, last)`, lowered.
      text: text of both programs, which the result depends on.
    """

    begin: Any
    steps: Any
    text: str

    @classmethod
    def of(cls, config: Config, env: Any, network: PolicyNetwork) -> Imitation:
        """Programs of a configuration."""
        options = config.warm_start
        optimizer = optax.adam(options.learning_rate)

        def loss(params: jax.Array, key: jax.Array) -> jax.Array:
            shown = env.demonstrations(key, options.batch, options.errors)
            flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), shown)
            first = jnp.zeros(len(flat.action), bool)
            past = Past(network.stored(network.initial_carry(options.batch)), first) if network.recurrent else None
            parameters = network.policy(network.unravel(params), flat.obs, past)
            log_prob = network.distribution.log_prob(parameters, flat.action)
            return -jnp.sum(jnp.where(flat.valid, log_prob, 0.0)) / jnp.sum(flat.valid)

        def begin(seed: jax.Array) -> Any:
            params = network.init(SeedKeys.of(jax.random.key(seed)).params)
            return params, optimizer.init(params)

        def steps(seed: jax.Array, before: Any, first: jax.Array, last: jax.Array) -> Any:
            run = SeedKeys.of(jax.random.key(seed)).run

            def step(number: jax.Array, so_far: Any) -> Any:
                params, state = so_far
                gradient = jax.grad(loss)(params, folded(run, [STREAM, number]))
                updates, state = optimizer.update(gradient, state)
                return params + updates, state

            return jax.lax.fori_loop(first, last, step, before)

        beginning, number = jax.jit(begin), np.int32(0)
        began = beginning.lower(np.uint32(0))
        taken = jax.jit(steps).lower(np.uint32(0), jax.eval_shape(begin, np.uint32(0)), number, number)
        return cls(beginning, taken, f"{began.as_text()}{taken.as_text()}{options.updates}")


def _compiled(lowered: Any, config: Config) -> Any:
    """Compiled imitation. Raises ConfigError if it needs more memory than there is."""
    compiled = lowered.compile()
    needed = getattr(compiled.memory_analysis(), "temp_size_in_bytes", 0)
    check_fits([Part("demonstrations", needed, 0, (f"warm_start.batch={config.warm_start.batch}",))])
    return compiled


def _imitated(
    imitation: Imitation,
    compiled: Any,
    seed: int,
    updates: int,
    working: Callable[[str], None],
    abandon: Callable[[], None],
) -> np.ndarray:
    """Parameters `[P]` of one seed after so many updates; `working` is told how many are done."""
    so_far, began = imitation.begin(np.uint32(seed)), time.monotonic()
    told = began
    ends = np.linspace(0, updates, PARTS + 1).astype(np.int32)
    for first, last in pairwise(ends):
        abandon()
        so_far = jax.block_until_ready(compiled(np.uint32(seed), so_far, first, last))
        now = time.monotonic()
        if now - told >= PATIENCE and last < updates:
            left, told = (now - began) * (updates - last) / last, now
            working(f"warm start of seed {seed}: {last} of {updates} updates, about {duration(left)} left")
    return np.asarray(so_far[0])


def _stored(place: Path | None, network: PolicyNetwork) -> np.ndarray | None:
    """Parameters stored in a file; `None` if there are none, or they are damaged."""
    (size,) = jax.eval_shape(network.init, jax.random.key(0)).shape
    numbers = None if place is None else read_checked(place, WORD * size)
    if numbers is None or len(numbers) != WORD * size:
        return None
    params = np.frombuffer(numbers, "<f4").copy()
    return params if np.isfinite(params).all() else None
