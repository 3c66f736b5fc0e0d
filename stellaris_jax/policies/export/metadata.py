"""Checks of an exported policy's metadata, before anything is built from it. Plain Python: no NumPy, no JAX.

Every check raises ValueError with a clause about "its" contents; `reading.load_policy` puts the file's name before it.
"""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any, NoReturn

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import DOCUMENT, MIB
from stellaris_jax.config.schema import LAST_SEED, frozen, shown
from stellaris_jax.config.tree import knobs
from stellaris_jax.config.validation import MOST_LAYERS

MOST_ELEMENTS = 2**24
"""Largest number of elements of an observation, and of parameters of an action distribution."""
MOST_AXES = 8
"""Largest number of axes of an observation."""
MOST_STEPS = 1e18
"""Largest number of environment steps of training."""

FIELDS = {"Box": {"shape", "low", "high", "dtype"}, "Discrete": {"n"}, "MultiDiscrete": {"nvec"}, "MultiBinary": {"n"}}
"""Fields of each kind of space, in addition to `kind`."""


def parsed(text: str | bytes) -> dict[str, Any]:
    """Parse a JSON object. Raises ValueError for other JSON, for NaN and infinities, and for too long a text."""
    if len(text) > DOCUMENT:
        raise ValueError(f"its metadata has more than {DOCUMENT / MIB:.0f} MiB")
    try:
        given = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its metadata is no JSON: {error}") from None
    if not isinstance(given, dict):
        raise ValueError("its metadata is no JSON object")
    return given


def check_metadata(given: dict[str, Any]) -> None:
    """Raise ValueError unless every field of the metadata, apart from its version, is valid for a policy."""
    for key in ("env", "fingerprint"):
        _require(isinstance(given[key], str), key, given[key], "a text")
    normalize, seed, steps = (given[key] for key in ("normalize_observation", "seed", "env_steps"))
    _require(isinstance(normalize, bool), "normalize_observation", normalize, "true or false")
    rescale = given["rescale_action"]
    _require(isinstance(rescale, bool), "rescale_action", rescale, "true or false")
    _require(_is_integer(seed, 0, LAST_SEED), "seed", seed, f"an integer from 0 to {LAST_SEED}")
    number = isinstance(steps, int | float) and not isinstance(steps, bool)
    _require(number and 0 <= steps <= MOST_STEPS, "env_steps", steps, f"a number from 0 to {MOST_STEPS:g}")
    own = given["distribution"]
    _require(_is_integer(own, 0, MOST_ELEMENTS), "distribution", own, f"an integer from 0 to {MOST_ELEMENTS}")
    check_space("observation_space", given["observation_space"])
    kind = given["observation_space"]["kind"]
    _require(kind == "Box", "observation_space.kind", kind, "Box")
    check_space("action_space", given["action_space"])
    action = given["action_space"]
    if action["kind"] == "Box":
        _require(action["dtype"] == "float32", "action_space.dtype", action["dtype"], "float32")
        _require(len(action["shape"]) == 1, "action_space.shape", action["shape"], "a list of one integer")
    finite = action["kind"] == "Box" and all(
        math.isfinite(float(text)) for bound in (action["low"], action["high"]) for text in _texts(bound)
    )
    _require(finite or not rescale, "rescale_action", rescale, "false, for its actions have no finite bounds")
    size = distribution_size(action)
    _require(size <= MOST_ELEMENTS, "action_space", action, f"a space of at most {MOST_ELEMENTS} parameters")
    check_network(given["network"])


def check_space(key: str, space: Any) -> None:
    """Raise ValueError unless data describe a space, as `envs.space_data.space_to_data` does."""
    _require(isinstance(space, dict), key, space, "a mapping")
    kind = space.get("kind")
    _require(isinstance(kind, str) and kind in FIELDS, f"{key}.kind", kind, f"one of {', '.join(FIELDS)}")
    names = ["kind", *sorted(FIELDS[kind])]
    _require(set(space) == set(names), key, space, f"a mapping with the keys {', '.join(names)}")
    if kind in ("Discrete", "MultiBinary"):
        _check_sizes(f"{key}.n", [space["n"]], 1)
    elif kind == "MultiDiscrete":
        _check_sizes(f"{key}.nvec", space["nvec"], MOST_ELEMENTS)
        _require(len(space["nvec"]) > 0, f"{key}.nvec", space["nvec"], "at least one choice")
    else:
        _check_box(key, space)


def _check_box(key: str, space: dict[str, Any]) -> None:
    shape, dtype = space["shape"], space["dtype"]
    _check_sizes(f"{key}.shape", shape, MOST_AXES)
    size = math.prod(shape)
    _require(size <= MOST_ELEMENTS, f"{key}.shape", shape, f"at most {MOST_ELEMENTS} elements")
    _require(dtype in ("float32", "uint8"), f"{key}.dtype", dtype, "float32 or uint8")
    bounds = {}
    for name in ("low", "high"):
        bound = space[name]
        texts = bound if isinstance(bound, list) else [bound]
        is_complete = isinstance(bound, str) or len(texts) == size
        accepted = f"a number as text, or a list of {size} of them"
        _require(is_complete and all(_is_number(text) for text in texts), f"{key}.{name}", bound, accepted)
        bounds[name] = [float(text) for text in texts] * (1 if isinstance(bound, list) else size)
    ordered = all(low <= high for low, high in zip(bounds["low"], bounds["high"], strict=True))
    _require(ordered, f"{key}.low", space["low"], f"at most {key}.high, {shown(space['high'])}")


def _texts(bound: str | list[str]) -> list[str]:
    return bound if isinstance(bound, list) else [bound]


def check_network(network: Any) -> None:
    """Raise ValueError unless data are a valid section `network` of a policy without memory.

    Names of torsos are not checked, because plug-ins have others.
    """
    _require(isinstance(network, dict), "network", network, "a mapping")
    for name, value in network.items():
        entry = knobs().get(f"network.{name}")
        if entry is None:
            raise ValueError(f"its network.{shown(name)} is no key of this version's configurations")
        try:
            replace(entry, registered="").check(frozen(value))
        except ConfigError as error:
            raise ValueError(f"its {error}".rstrip(".")) from None
    hidden, memory = network.get("hidden", ()), network.get("memory", "none")
    _require(len(hidden) <= MOST_LAYERS, "network.hidden", hidden, f"at most {MOST_LAYERS} layers")
    _require(memory == "none", "network.memory", memory, "none, for no format has memory")


def distribution_size(action_space: dict[str, Any]) -> int:
    """Number of parameters of the distribution over a checked space; see `agent.networks.distributions`."""
    if action_space["kind"] == "Box":
        return 2 * math.prod(action_space["shape"])
    return sum(action_space["nvec"]) if action_space["kind"] == "MultiDiscrete" else int(action_space["n"])


def action_type(action_space: dict[str, Any]) -> tuple[str, tuple[int, ...]]:
    """Dtype and shape of one action of a checked space."""
    kind = action_space["kind"]
    if kind == "Box":
        return "float32", tuple(action_space["shape"])
    if kind == "Discrete":
        return "int32", ()
    return "int32", (len(action_space["nvec"]) if kind == "MultiDiscrete" else int(action_space["n"]),)


def _check_sizes(key: str, sizes: Any, most: int) -> None:
    """Raise ValueError unless data are a list of at most `most` positive integers."""
    _require(isinstance(sizes, list) and len(sizes) <= most, key, sizes, f"a list of at most {most} integers")
    for size in sizes:
        _require(_is_integer(size, 1, MOST_ELEMENTS), key, size, f"an integer from 1 to {MOST_ELEMENTS}")


def _is_integer(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_number(text: Any) -> bool:
    """Whether a value is the text of a number or of an infinity."""
    try:
        return isinstance(text, str) and not math.isnan(float(text))
    except ValueError:
        return False


def _require(holds: bool, key: str, value: Any, accepted: str) -> None:
    if not holds:
        raise ValueError(f"its {key} is {shown(value)}; accepted: {accepted}")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number")
