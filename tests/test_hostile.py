"""Random hostile configurations: each is refused in one sentence that names a key, before anything is compiled, or can
be trained."""

from __future__ import annotations

import math
import random
import re
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
import pytest

from stellaris_jax import Config, ConfigError, Trainer
from stellaris_jax.agent.networks import ActorCritic
from stellaris_jax.config.compose import GROUPS, choices, compose_config, load_sweep
from stellaris_jax.config.schema import Knob
from stellaris_jax.config.tree import knobs, sections
from stellaris_jax.envs.registry import from_config
from stellaris_jax.execute.footprint import check_run
from stellaris_jax.execute.loading import checked
from stellaris_jax.timeline import Timeline

NUMBERS: list[Any] = [
    math.nan, math.inf, -math.inf, -1, 0, 1, 2, 3, 7, 0.5, -0.0, 5e-324, 1e-300, 1e30, 3.4e38, 1e300, 10**6, 10**8, 1e8,
    65536, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30, 10**400, 10**5000, True, False,
]  # fmt: skip
TEXTS = [
    "", " ", "nan", "None", "null", "true", "0", "-1", "1e400", "${seed}", "${", "???", "\n", "\0", "a\nb", "é",
    "\udcff", "x" * 5000, "../..", "/", "gymnax/", "/x", "gymnax/cartpole/../x", "fixed ", "PPO", "stelaris", "[", "{",
    "~", "a=b", "a,b",
]  # fmt: skip
OBJECTS: list[Any] = [object(), (1,), b"x", {1, 2}, 1j, [[[[]]]], [1] * 1000, range(3), np.eye(9), print]
UNNAMED = ("is not an override", "is not a config key", "~")
"""Parts of messages about lines that name no key at all."""
KEYS = [*knobs(), *sections()]


def anything(r: random.Random, depth: int = 0) -> Any:
    kind = r.choices(("number", "text", "nothing", "list", "mapping", "object"), (60, 15, 5, 7, 7, 6))[0]
    if kind == "list" and depth < 4:
        return [anything(r, depth + 1) for _ in range(r.choice([0, 1, 2, 3]))]
    if kind == "mapping" and depth < 4:
        return {r.choice([*TEXTS, "a", 3, None]): anything(r, depth + 1) for _ in range(r.choice([0, 1, 2]))}
    return {"number": r.choice(NUMBERS), "text": r.choice(TEXTS), "object": r.choice(OBJECTS)}.get(kind)


def fitting(r: random.Random, entry: Knob) -> Any:
    """A value that is more often than not of the type of its key, and then extreme."""
    if r.random() < 0.35:
        return anything(r)
    if entry.names and entry.kind is str:
        return r.choice(entry.names)
    ordinary = 10 ** r.uniform(-12, 12)
    return {
        int: r.choice([int(ordinary), *(n for n in NUMBERS if isinstance(n, int))]),
        float: r.choice([ordinary, *NUMBERS]),
        bool: r.random() < 0.5,
        str: r.choice(TEXTS),
        tuple[int, ...]: [int(10 ** r.uniform(0, 6)) for _ in range(r.randint(0, 4))],
        tuple[float, ...]: [10 ** r.uniform(-9, 30) for _ in range(r.randint(0, 4))],
        tuple[str, ...]: [r.choice(TEXTS) for _ in range(r.randint(0, 2))],
        float | None: r.choice([None, ordinary, *NUMBERS]),
        bool | None: r.choice([None, True, False]),
        dict[str, Any]: {r.choice([*TEXTS, "start_pool"]): anything(r)},
    }[entry.kind]


def mutated(r: random.Random, text: str) -> str:
    """One or two characters are taken away, put in or replaced: a near miss."""
    for _ in range(r.choice([1, 1, 2])):
        i = r.randrange(len(text) + 1)
        text = text[:i] + r.choice(["", r.choice("abz._=${}[]()'\"\\, \t\n~+@:/-0é")]) + text[i + r.choice([0, 1]) :]
    return text


def written(value: Any) -> str:
    try:
        return str(value)
    except ValueError:  # thousands of digits
        return "9" * 5000


def line(r: random.Random) -> str:
    """An override as somebody may type it."""
    key, group = r.choice(list(knobs())), r.choice(GROUPS)
    value = written(anything(r))
    return r.choice(
        [
            f"{key}={written(fitting(r, knobs()[key]))}",
            f"{r.choice(['', '+', '++', '~'])}{mutated(r, key)}={value}",
            mutated(r, f"{key}=1"),
            f"{group}={mutated(r, r.choice(choices(group)))}",
            f"{r.choice([group, r.choice(list(sections()))])}={value}",
            f"env.kwargs={{a: {value}}}",
            "".join(r.choice("abc=.{}[]$~+,'\"\\ 012") for _ in range(r.randint(0, 12))),
        ]
    )


def consider(config: Config) -> None:
    """All steps before a trainer compiles: checks, the environment, the network, and some planned rounds."""
    config = checked(config)
    env = from_config(config.env)
    check_run(config, env, ActorCritic(env.observation_space, env.action_space, config.network))
    timeline = Timeline.of(config, config.seed)
    for _ in range(2):
        assert math.isfinite(timeline.next_round().usage.seconds)


@contextmanager
def little_is_done() -> Iterator[list[str]]:
    """Collects what is compiled within; memory may grow by a few hundred MB only."""
    compiled: list[str] = []

    def listen(event: str, duration_secs: float, **_: str | int) -> None:
        if "backend_compile" in event:
            compiled.append(event)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        yield compiled
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 500_000, "KB"


def well_said(error: ConfigError, names: tuple[str, ...] = ()) -> bool:
    message = str(error)
    long = [key for key in KEYS if "." in key or "_" in key]
    named = any(name in message for name in (*long, *names)) or any(
        re.search(rf"(?<![\w./]){key}(?=[=.]| is | must | needs )", message) for key in {*KEYS} - {*long}
    )
    return named and message.isprintable() and len(message) < 2100 and message[-1] in ".?"


def test_values_set_from_python() -> None:
    consider(Config())
    accepted = refused = 0
    for seed in range(200):
        r = random.Random(seed)
        keys = r.sample(list(knobs()), r.choice([1, 1, 2, 3]))
        config = Config().replace({key: fitting(r, knobs()[key]) for key in keys})
        with little_is_done() as compiled:
            try:
                consider(config)
                accepted += 1
            except ConfigError as error:
                refused += 1
                assert well_said(error), (seed, str(error))
                assert not compiled, seed
            except Exception as error:
                raise AssertionError(f"case {seed}") from error
    assert accepted > 40 and refused > 100


def test_lines_of_the_command_line() -> None:
    consider(Config())
    refused = 0
    for seed in range(100):
        r = random.Random(seed)
        lines = [line(r) for _ in range(r.choice([1, 1, 2]))]
        with little_is_done():
            try:
                load_sweep(lines)
                consider(compose_config(lines))
            except ConfigError as error:
                refused += 1
                assert well_said(error, (*(f"{group}=" for group in GROUPS), *UNNAMED)), (lines, str(error))
            except Exception as error:
                raise AssertionError(f"case {seed}: {lines}") from error
    assert refused > 60


@pytest.mark.slow
def test_what_is_accepted_is_trained() -> None:
    """Some of the accepted ones, small, for a round."""
    small = {
        "env.num_envs": 4, "algorithm.rollout_length": 4, "network.hidden": [4], "algorithm.epochs": 2,
        "total_steps": 32, "evaluation.episodes": 0,
    }  # fmt: skip
    trained = 0
    for seed in range(1000):
        r = random.Random(seed)
        values = {key: fitting(r, knobs()[key]) for key in r.sample(list(knobs()), 3)}
        config = Config().replace({**values, **small})
        try:
            consider(config)
        except ConfigError:
            continue
        records = Trainer(config).run()
        assert records and records[-1]["updates"] > 0, seed
        trained += 1
        if trained == 12:
            return
    raise AssertionError(f"only {trained} were accepted")
