"""Exported policies of any format: metadata and sampling of actions. Requires NumPy alone.

A file holds the program or the parameters, the normalizer, and `Metadata` as JSON. It is sealed: the metadata has a
fingerprint of the whole file, in which the fingerprint itself counts as zeros. Readers check it first and so find
damage before they build anything from the file. A seal proves nothing about the author, because anyone can seal an
edited file.
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

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.inputs import MIB, read_bytes
from stellaris_jax.config.schema import shown
from stellaris_jax.policies.export.metadata import action_type, check_metadata, distribution_size, parsed

VERSION = 1
"""Version of the format, stored in every file."""
ENDINGS = {"stablehlo": ".stablehlo", "onnx": ".onnx", "flax": ".msgpack"}
"""File name endings, keyed by format."""
MOST_BYTES = 2**30
"""Largest size of a file, in bytes."""
UNSEALED = "0" * 64
SEAL = re.compile(rb'"fingerprint": "([0-9a-f]{64})"')


class Outputs(NamedTuple):
    """Outputs of a policy for observations `[B, ...]`.

    Attributes:
      action: `[B, ...]`, most likely actions, within the bounds of their space.
      distribution: `[B, D]`, parameters of the action distribution.
      value: `[B]`, values.
    """

    action: Any
    distribution: Any
    value: Any


@dataclass(frozen=True)
class Metadata:
    """Metadata of an exported policy, in types that JSON can hold.

    Attributes:
      env: full name of the task.
      observation_space, action_space: spaces of the environment; see `envs.space_data.space_to_data`.
      network: section `network` of the configuration.
      normalize_observation: whether observations are normalized; statistics and program are in the file.
      seed: seed of the policy within its run.
      env_steps: environment steps of training.
      rescale_action: whether the distribution is over actions from -1 to 1, which map to the bounds of the action
        space; returned actions are within these bounds. False in files of earlier versions.
      distribution: number of parameters of the policy's own action distribution; 0 if it is the one for the action
        space, as in files of earlier versions.
      version: version of the format.
      fingerprint: fingerprint of the file; see `with_fingerprint`.
    """

    env: str
    observation_space: dict[str, Any]
    action_space: dict[str, Any]
    network: dict[str, Any]
    normalize_observation: bool
    seed: int
    env_steps: float
    rescale_action: bool = False
    distribution: int = 0
    version: int = VERSION
    fingerprint: str = UNSEALED

    def outputs(self) -> dict[str, tuple[str, tuple[int, ...]]]:
        """Dtypes and shapes of the `Outputs` for one observation, keyed by name."""
        action = action_type(self.action_space)
        distribution = ("float32", (self.distribution or distribution_size(self.action_space),))
        return {"action": action, "distribution": distribution, "value": ("float32", ())}

    def to_json(self) -> str:
        """JSON text of the metadata, on one line."""
        return json.dumps(asdict(self), allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Metadata:
        """Parse and check metadata written by `to_json`. Raises ValueError for another version or invalid contents."""
        given = parsed(text)
        if "version" not in given:
            raise ValueError("it has no version")
        version = given["version"]
        if isinstance(version, bool) or version != VERSION:
            raise ValueError(f"its format is version {shown(version)}, and {VERSION} is what can be read")
        given.setdefault("rescale_action", False)
        given.setdefault("distribution", 0)
        missing = [field.name for field in fields(cls) if field.name not in given]
        if missing:
            raise ValueError(f"its metadata lacks {missing[0]}")
        check_metadata(given)
        return cls(**{field.name: given[field.name] for field in fields(cls)})


@dataclass(frozen=True, eq=False)
class ExportedPolicy:
    """Policy read from a file, called with one observation or a batch `[B, ...]`; NumPy in, NumPy out.

    Attributes:
      metadata: metadata of the file, with the policy's spaces.
      forward: function from observations `[B, ...]`, in the space's dtype, to `Outputs`.
    """

    metadata: Metadata
    forward: Callable[[np.ndarray], Outputs]

    def __repr__(self) -> str:
        about = self.metadata
        observed, acted = about.observation_space, about.action_space
        seen = f"{observed['dtype']} observations of shape {tuple(observed['shape'])}"
        return f"ExportedPolicy({about.env}, {seen}, actions of {acted['kind']})"

    def __call__(self, obs: Any, generator: np.random.Generator | None = None) -> np.ndarray:
        """Actions for observations `[*obs]` or `[B, *obs]`, with the same number of leading axes, within their bounds.

        With a generator, actions are sampled; without one they are the most likely. Raises ValueError for arrays of any
        other shape.
        """
        batch, single = self._batch(obs)
        outputs = self.forward(batch)
        action = outputs.action
        if generator is not None:
            about = self.metadata
            if about.distribution:
                raise ValueError(
                    f"The distribution of network.policy={about.network['policy']} is not in the file; without a "
                    "generator the policy returns the most likely actions."
                )
            action = sampled(np.asarray(outputs.distribution), about.action_space, generator, about.rescale_action)
        return np.asarray(action[0] if single else action)

    def step(
        self, obs: Any, carry: None = None, generator: np.random.Generator | None = None
    ) -> tuple[np.ndarray, None]:
        """Actions as a call returns them, and the next carry, which is None: no policy in a file has memory.

        The method has the interface of `Policy.step`, so one loop plays any policy.
        """
        return self(obs, generator), None

    def outputs(self, obs: Any) -> Outputs:
        """Outputs for one observation or a batch, with the same number of leading axes."""
        batch, single = self._batch(obs)
        return Outputs(*(np.asarray(x[0] if single else x) for x in self.forward(batch)))

    def _batch(self, obs: Any) -> tuple[np.ndarray, bool]:
        space = self.metadata.observation_space
        shape = tuple(space["shape"])
        obs = np.asarray(obs, space["dtype"])
        single = is_single(obs.shape, shape)
        return (obs[None] if single else obs), single


def is_single(shape: tuple[int, ...], space: tuple[int, ...]) -> bool:
    """Whether a shape is one observation of a space rather than a batch. Raises ValueError if it is neither."""
    single = len(shape) == len(space)
    if shape[0 if single else 1 :] != space:
        batch = ", ".join(["(B", *map(str, space)]) + ")"
        # One number, where the policy has learned from a vector, is most often an observation of a Discrete space.
        number = not shape and len(space) == 1
        hint = f" A Discrete observation is one-hot: numpy.eye({space[0]})[observation]." if number else ""
        raise ValueError(f"Observations of shape {shape} do not fit; accepted: {space} or {batch}.{hint}")
    return single


def sampled(
    distribution: np.ndarray, space: dict[str, Any], generator: np.random.Generator, rescale: bool = False
) -> np.ndarray:
    """Sample actions `[B, ...]` from distributions with parameters `[B, D]`; see `agent.networks.distributions`.

    Args:
      distribution: `[B, D]`, parameters.
      space: action space.
      generator: random generator.
      rescale: the distributions are over actions from -1 to 1, which map to the bounds of the space.
    """
    kind = space["kind"]
    if kind == "Box":
        mean, log_std = np.split(distribution, 2, axis=-1)
        action = mean + np.exp(log_std) * generator.standard_normal(mean.shape, np.float32)
        low, high = (np.asarray(space[bound], float).astype(np.float32) for bound in ("low", "high"))
        if rescale:
            unit = np.clip(action, np.float32(-1), np.float32(1))
            action = (unit * (high / 2 - low / 2) + (high / 2 + low / 2)).astype(np.float32)
        return np.clip(action, low, high)
    if kind == "MultiBinary":
        return (distribution + generator.logistic(size=distribution.shape) > 0).astype(np.int32)
    noisy = distribution + generator.gumbel(size=distribution.shape)
    if kind == "Discrete":
        return noisy.argmax(axis=-1).astype(np.int32)
    ends = np.cumsum(space["nvec"])[:-1]
    return np.stack([part.argmax(axis=-1) for part in np.split(noisy, ends, axis=-1)], axis=-1).astype(np.int32)


def with_fingerprint(data: bytes) -> bytes:
    """File contents with the fingerprint in place of the zeros in the metadata.

    Raises ConfigError for a file too large to be read again.
    """
    if len(data) > MOST_BYTES:
        raise ConfigError(f"The file would have {len(data) / MIB:,.0f} MiB; accepted: at most {MOST_BYTES / MIB:,.0f}.")
    start, end = SEAL.search(data).span(1)  # type: ignore[union-attr]
    return data[:start] + fingerprint(data, start, end).encode() + data[end:]


def fingerprint(data: bytes, start: int, end: int) -> str:
    """SHA-256 of a file; the bytes from `start` to `end` count as zeros in text."""
    digest, view = hashlib.sha256(), memoryview(data)  # a view, because files may be as large as memory
    for part in (view[:start], UNSEALED.encode(), view[end:]):
        digest.update(part)
    return digest.hexdigest()


def read_intact(path: Path) -> bytes:
    """Contents of an intact file. Raises ConfigError if it is damaged, too large or unreadable."""
    try:
        data = read_bytes(path, MOST_BYTES)
    except (OSError, ValueError) as error:  # the latter for a name with a null byte
        raise ConfigError(f"{path} cannot be read: {getattr(error, 'strerror', error)}.") from None
    seal = SEAL.search(data)
    if seal is None:
        raise ConfigError(f"{path} is no policy that was exported here, or is cut off.")
    if fingerprint(data, *seal.span(1)).encode() != seal[1]:
        raise ConfigError(f"{path} is damaged: its contents do not match their fingerprint; export it again.")
    return data
