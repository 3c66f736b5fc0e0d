"""What an exported policy is, whatever its format: what it says of itself, and how it acts. NumPy alone.

A file holds the program or the parameters, with the normaliser in it, and `Metadata` as JSON. It is sealed: the
metadata has a fingerprint of the whole file, its own place filled with zeros, so that damage is found out before
anything is made of it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from stellaris_jax.config.schema import ConfigError

VERSION = 1
"""Of the format; a file says which it is of."""
ENDINGS = {"stablehlo": ".stablehlo", "onnx": ".onnx", "flax": ".msgpack"}
"""What files of each format are called."""
UNSEALED = "0" * 64
SEAL = re.compile(rb'"fingerprint": "([0-9a-f]{64})"')


class Outputs(NamedTuple):
    """What a policy says of observations `[B, ...]`: its most likely actions `[B, ...]`, within the bounds of their
    space; the parameters `[B, D]` of the action distribution; and values `[B]`."""

    action: Any
    distribution: Any
    value: Any


@dataclass(frozen=True)
class Metadata:
    """What an exported policy says of itself, as JSON can hold it.

    Args:
      env: the task by its full name.
      observation_space, action_space: see `spaces.described`.
      network: the section `network` of the configuration.
      normalize_observation: whether observations are normalised; statistics and program are in the file.
      seed: of the run, whose policy it is.
      env_steps: trained on.
      version: of the format.
      fingerprint: of the file, see `sealed`.
    """

    env: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    network: dict[str, Any]
    normalize_observation: bool
    seed: int
    env_steps: float
    version: int = VERSION
    fingerprint: str = UNSEALED

    def to_json(self) -> str:
        """One line."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Metadata:
        """Read what `to_json` wrote. Raises ValueError for another version, and for what is no metadata."""
        given = json.loads(text)
        if not isinstance(given, dict) or "version" not in given:
            raise ValueError("it has no version")
        if given["version"] != VERSION:
            raise ValueError(f"its format is version {given['version']}, and {VERSION} is what can be read")
        missing = [field.name for field in fields(cls) if field.name not in given]
        if missing:
            raise ValueError(f"its metadata lacks {missing[0]}")
        return cls(**{field.name: given[field.name] for field in fields(cls)})


@dataclass(frozen=True, eq=False)
class ExportedPolicy:
    """A policy read from a file. Call it with one observation or a batch `[B, ...]`; NumPy in, NumPy out.

    Args:
      metadata: what the file says of itself, its spaces among it.
      forward: `Outputs` of observations `[B, ...]` of the space's dtype.
    """

    metadata: Metadata
    forward: Callable[[np.ndarray], Outputs]

    def __call__(self, obs: Any, generator: np.random.Generator | None = None) -> np.ndarray:
        """Actions of observations `[*obs]` or `[B, *obs]`, with as many leading axes, within their bounds.

        With a generator they are sampled, without one they are the most likely. Raises ValueError for arrays of any
        other shape.
        """
        batch, single = self._batch(obs)
        outputs = self.forward(batch)
        action = outputs.action
        if generator is not None:
            action = sampled(np.asarray(outputs.distribution), self.metadata.action_space, generator)
        return np.asarray(action[0] if single else action)

    def step(
        self, obs: Any, carry: None = None, generator: np.random.Generator | None = None
    ) -> tuple[np.ndarray, None]:
        """Actions as of a call, and what is carried on: nothing, for no policy in a file has memory.

        So one loop plays any policy; see `Policy.step`.
        """
        return self(obs, generator), None

    def outputs(self, obs: Any) -> Outputs:
        """All that the policy says of one observation or a batch, with as many leading axes."""
        batch, single = self._batch(obs)
        return Outputs(*(np.asarray(x[0] if single else x) for x in self.forward(batch)))

    def _batch(self, obs: Any) -> tuple[np.ndarray, bool]:
        space = self.metadata.observation_space
        shape = tuple(space["shape"])
        obs = np.asarray(obs, space["dtype"])
        single = is_single(obs.shape, shape)
        return (obs[None] if single else obs), single


def is_single(shape: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Whether an array of a shape is one observation of a space, rather than a batch; ValueError if it is neither."""
    single = len(shape) == len(space)
    if shape[0 if single else 1 :] != space:
        batch = ", ".join(["(B", *map(str, space)]) + ")"
        raise ValueError(f"Observations of shape {shape} do not fit; accepted: {space} or {batch}.")
    return single


def sampled(distribution: np.ndarray, space: dict[str, Any], generator: np.random.Generator) -> np.ndarray:
    """Actions `[B, ...]` drawn from distributions of parameters `[B, D]`; see `agent.networks.distributions`."""
    kind = space["kind"]
    if kind == "Box":
        mean, log_std = np.split(distribution, 2, axis=-1)
        action = mean + np.exp(log_std) * generator.standard_normal(mean.shape, np.float32)
        low, high = (np.asarray(space[bound], float).astype(np.float32) for bound in ("low", "high"))
        return np.clip(action, low, high)
    if kind == "MultiBinary":
        return (distribution + generator.logistic(size=distribution.shape) > 0).astype(np.int32)
    noisy = distribution + generator.gumbel(size=distribution.shape)
    if kind == "Discrete":
        return noisy.argmax(axis=-1).astype(np.int32)
    ends = np.cumsum(space["nvec"])[:-1]
    return np.stack([part.argmax(axis=-1) for part in np.split(noisy, ends, axis=-1)], axis=-1).astype(np.int32)


def sealed(data: bytes) -> bytes:
    """A file with its fingerprint in it, which takes the place of the zeros in its metadata."""
    start, end = SEAL.search(data).span(1)  # type: ignore[union-attr]
    return data[:start] + hashlib.sha256(data).hexdigest().encode() + data[end:]


def unsealed(path: Path) -> bytes:
    """The bytes of a file that are as they were written. Raises ConfigError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}.") from None
    seal = SEAL.search(data)
    if seal is None:
        raise ConfigError(f"{path} is no policy that was exported here, or is cut off.")
    start, end = seal.span(1)
    if hashlib.sha256(data[:start] + UNSEALED.encode() + data[end:]).hexdigest().encode() != seal[1]:
        raise ConfigError(f"{path} is damaged: its contents do not match their fingerprint; export it again.")
    return data
