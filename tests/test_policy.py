"""A trained policy as users hold it: one observation or a batch, compiled once, carried elsewhere by pickle."""

from __future__ import annotations

import pickle
import re
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from policies import random_policy

from stellaris_jax.engine.rollout import view
from stellaris_jax.envs.base import Box, Discrete

REAL = Box((4,), (-9.0,) * 4, (9.0,) * 4)
BYTES = Box((2, 3), (0.0,) * 6, (255.0,) * 6, "uint8")


def observations(space: Box, count: int) -> np.ndarray:
    drawn = np.random.default_rng(0).uniform(space.low[0], space.high[0], (count, *space.shape))
    return drawn.astype(space.dtype)


@pytest.mark.parametrize("space", [REAL, BYTES])
def test_acts_as_the_network_that_was_trained(space: Box) -> None:
    """On bytes, too: networks read them as fractions, and as soon as they are floats no longer."""
    policy, obs = random_policy(space, Box((2,), (-0.2,) * 2, (0.5,) * 2)), observations(space, 5)
    tree = policy.network.unravel(policy.params)
    parameters = policy.network.policy(tree, view(policy.normalizers, jnp.asarray(obs), policy.config.env))
    mode = policy.network.distribution.mode(parameters)
    expected = np.clip(mode, -0.2, 0.5)  # as environments clip actions
    assert (expected != mode).any() and (expected == mode).any()
    np.testing.assert_allclose(policy(obs), expected, rtol=1e-5)
    one = policy(obs[3])
    assert one.shape == (2,) and policy(obs[:1]).shape == (1, 2)
    np.testing.assert_allclose(one, expected[3], rtol=1e-5)
    np.testing.assert_allclose(policy(obs[3].tolist()), one)


def test_samples_by_a_key() -> None:
    policy = random_policy(REAL, Discrete(3))
    obs = observations(REAL, 1).repeat(400, axis=0)
    drawn = np.asarray(policy(obs, jax.random.key(0)))
    assert drawn.dtype == np.int32 and set(drawn) == {0, 1, 2}
    np.testing.assert_array_equal(drawn, policy(obs, jax.random.key(0)))
    assert policy(obs[0], jax.random.key(0)).shape == ()


def test_is_compiled_once_for_each_size_of_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    policy, traced = random_policy(REAL, Discrete(3)), []
    original = policy.network.act
    monkeypatch.setattr(policy.network, "act", lambda *given: traced.append(given) or original(*given))
    for obs in observations(REAL, 4):
        policy(obs)
    assert len(traced) == 1
    for _ in range(3):
        policy(observations(REAL, 4))
    assert len(traced) == 2


def test_works_inside_other_programs() -> None:
    policy, obs = random_policy(REAL, Discrete(3)), observations(REAL, 4)
    np.testing.assert_array_equal(jax.jit(policy)(obs), policy(obs))
    np.testing.assert_array_equal(jax.vmap(policy)(obs), policy(obs))


def test_is_carried_to_another_process(tmp_path: Path) -> None:
    policy, obs = random_policy(REAL, Discrete(3)), observations(REAL, 8)
    expected = np.asarray(policy(obs))  # what it has compiled stays here
    (tmp_path / "policy").write_bytes(pickle.dumps(policy))
    np.save(tmp_path / "obs.npy", obs)
    code = (
        "import pickle, numpy, pathlib; policy = pickle.loads(pathlib.Path('policy').read_bytes());"
        "print(numpy.asarray(policy(numpy.load('obs.npy'))).tolist())"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(expected.tolist())


@pytest.mark.parametrize("shape", [(3,), (), (2, 5), (2, 2, 4)])
def test_other_shapes_are_refused_in_a_sentence(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"accepted: \(4,\) or \(B, 4\)"):
        random_policy(REAL, Discrete(3))(np.zeros(shape))


def test_is_shown_in_one_line() -> None:
    """Never with all of its parameters and statistics."""
    shown = repr(random_policy(REAL, Discrete(3)))
    assert re.fullmatch(r"Policy\(\S+, float32 observations of shape \(4,\), actions of Discrete\(n=3\)\)", shown)


def test_a_number_for_a_vector_is_told_of_one_hot_vectors() -> None:
    policy = random_policy(REAL, Discrete(3))
    with pytest.raises(ValueError, match=r"shape \(\) do not fit; .* is one-hot: numpy\.eye\(4\)\[observation\]\."):
        policy(2)
