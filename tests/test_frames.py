"""Frames of stacked observations, stored once: what is drawn is what was observed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris_jax import load_config
from stellaris_jax.config.buffer import ReplayBuffer
from stellaris_jax.engine.frames import Frames, frame_batches, refers, with_references
from stellaris_jax.engine.prepare import Collected
from stellaris_jax.engine.transitions import Window, transitions
from stellaris_jax.envs.base import Box
from stellaris_jax.execute import footprint
from stellaris_jax.execute.trainer import Trainer
from stellaris_jax.runs.checkpoint import Checkpoints

STEPS = ("obs", "valid", "terminated", "truncated", "reward")
NAMES = ("obs", "next_obs", "reward", "discount", "valid")


class Screens:
    """Environments whose observations join their last frames, as Atari's do; frames are random, of 2 x 1 x 2 bytes."""

    def __init__(self, envs: int, depth: int, seed: int, restarts: float, zeros: bool):
        self.random = np.random.default_rng(seed)
        self.envs, self.depth, self.restarts, self.zeros = envs, depth, restarts, zeros
        self.ended = np.zeros(envs, bool)
        self.obs = np.stack([self.first() for _ in range(envs)])

    def frame(self) -> np.ndarray:
        return self.random.integers(0, 4, (2, 1, 2)).astype(np.uint8)

    def first(self) -> np.ndarray:
        """First observation of an episode: its frame, repeated, or zeros before it."""
        frame = self.frame()
        return np.concatenate([*[frame * (not self.zeros)] * (self.depth - 1), frame], axis=-1)

    def rolled(self, length: int) -> dict[str, np.ndarray]:
        """Steps `[T, N, ...]` as actors on the host record them: the step after an end only starts the next episode."""
        steps: dict[str, list[np.ndarray]] = {
            name: [] for name in ("obs", "valid", "terminated", "truncated", "reward")
        }
        for _ in range(length):
            ends = (self.random.random(self.envs) < self.restarts) & ~self.ended
            kind = self.random.random(self.envs) < 0.5
            row = (self.obs, ~self.ended, ends & kind, ends & ~kind, self.random.random(self.envs).astype(np.float32))
            for name, value in zip(steps, row, strict=True):
                steps[name].append(value)
            after = [
                self.first() if self.ended[n] else np.concatenate([self.obs[n][..., 2:], self.frame()], axis=-1)
                for n in range(self.envs)
            ]
            self.obs, self.ended = np.stack(after), ends
        return {name: np.stack(rows) for name, rows in steps.items()}

    def restart(self) -> None:
        """Begin new episodes, as a continued run does whose environments cannot continue."""
        self.obs, self.ended = np.stack([self.first() for _ in range(self.envs)]), np.zeros(self.envs, bool)


def collected(steps: dict[str, np.ndarray], last: np.ndarray) -> Collected:
    after = np.concatenate([steps["obs"][1:], last[None]])
    fields = dict.fromkeys(Collected._fields)
    given = {**steps, "next_obs": after, "action": np.zeros(steps["reward"].shape, np.int32)}
    return Collected(**{**fields, **{name: jnp.asarray(value) for name, value in given.items()}})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("envs", "length", "depth", "n", "restarts", "breaks", "zeros"),
    [
        (2, 4, 4, 1, 0.1, 0, False),
        (3, 1, 4, 3, 0.2, 4, False),
        (1, 2, 3, 4, 0.5, 3, False),
        (2, 5, 2, 2, 0.0, 5, False),
        (2, 3, 3, 2, 0.3, 2, True),
    ],
)
def test_what_is_drawn_is_what_was_observed(
    envs: int, length: int, depth: int, n: int, restarts: float, breaks: int, zeros: bool
) -> None:
    buffer = ReplayBuffer(batches=3, stored=3, batch=1, gradients=1, waiting=0, steps=n)
    space = Box((2, 1, 2 * depth), 0.0, 255.0, "uint8", frames=depth)
    screens, frames = Screens(envs, depth, 0, restarts, zeros), Frames.empty(envs, length, buffer, space)
    assert len(frames.pixels) == envs * length * frame_batches(length, buffer, depth)
    action = jnp.zeros(1, jnp.int32)
    likes = (jnp.zeros((1, *space.shape), jnp.uint8), jnp.zeros((1, 2), jnp.int32))
    windows = [Window.empty(envs, n, like, action) for like in likes]
    kept: list[list[Any]] = []
    for batch in range(9):
        if breaks and batch == breaks:
            screens.restart()
            # Whole observations know of the break by their flags alone.
            windows[0] = windows[0] and windows[0]._replace(valid=windows[1].valid)  # type: ignore[union-attr]
        steps = screens.rolled(length)
        whole = collected(steps, screens.obs)
        frames, referring, windows[1], lost = with_references(frames, whole, windows[1], jnp.int32(batch))
        if kept:
            _, previous = kept[-1]
            kept[-1][1] = previous._replace(valid=previous.valid & ~refers(previous.next_obs, lost))
        whole = whole._replace(valid=referring.valid)
        if windows[0] is not None:
            windows[0] = windows[0]._replace(valid=windows[1].valid)  # type: ignore[union-attr]
        expected, windows[0] = transitions(whole, windows[0], n, 0.9)
        stored, windows[1] = transitions(referring, windows[1], n, 0.9)
        kept = [*kept, [expected, stored]][-buffer.stored :]
        for expected, stored in kept:
            valid = np.asarray(stored.valid)
            for name in NAMES[2:4]:
                np.testing.assert_array_equal(getattr(stored, name), getattr(expected, name))
            for name in NAMES[:2]:
                drawn = np.asarray(frames.observations(getattr(stored, name)))
                np.testing.assert_array_equal(drawn[valid], np.asarray(getattr(expected, name))[valid])
        if not zeros and not breaks:
            np.testing.assert_array_equal(referring.valid, steps["valid"])


ATARI = ("algorithm=dqn", "env.name=envpool/Breakout-v5", "env.num_envs=2", "algorithm.rollout_length=16",
         "env.kwargs.max_episode_steps=40", "env.life_loss=true", "algorithm.options.batch_size=8",
         "algorithm.options.learning_starts=96", "algorithm.options.updates_per_step=0.125", "network.torso=nature_cnn",
         "network.hidden=[16]", "algorithm.options.buffer_size=160", "algorithm.options.n_step=3",
         "evaluation.episodes=0", "total_steps=640", "system=allreduce", "system.learners=1")  # fmt: skip


def trainer_of(*overrides: str) -> Trainer:
    return Trainer(load_config([*ATARI, *overrides]))


def test_atari_learns_the_same_as_from_whole_observations(monkeypatch: pytest.MonkeyPatch) -> None:
    once = trainer_of()
    assert once.state.loader.frames is not None
    monkeypatch.setattr("stellaris_jax.engine.state.stored_once", lambda *given: False)
    whole = trainer_of()
    for trainer in (once, whole):
        trainer.run()
    assert whole.state.loader.frames is None
    np.testing.assert_array_equal(once.state.params, whole.state.params)
    np.testing.assert_array_equal(once.state.loader.fragments.valid, whole.state.loader.fragments.valid)


def test_devices_share_frames() -> None:
    one, two = trainer_of(), trainer_of("engine.devices=2")
    for trainer in (one, two):
        trainer.run()
    np.testing.assert_allclose(two.state.params, one.state.params, rtol=1e-3, atol=1e-5)
    assert one.state.loader.frames is not None and two.state.loader.frames is not None
    np.testing.assert_array_equal(one.state.loader.frames.pixels, two.state.loader.frames.pixels)
    np.testing.assert_array_equal(one.state.loader.fragments.valid, two.state.loader.fragments.valid)
    pixels = two.state.loader.frames.pixels
    assert [part.data.shape[1] for part in pixels.addressable_shards] == [pixels.shape[1] // 2] * 2


@pytest.mark.usefixtures("shared_programs")
@pytest.mark.parametrize("others", [(), ("system=async", "system.learners=3")], ids=["central", "async"])
def test_runs_continue_to_the_bit(others: tuple[str, ...], tmp_path: Path) -> None:
    whole, first, second = (trainer_of(*others) for _ in range(3))
    whole.run()
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    for end in (5, 6, 13):
        first.run(end - first.round)
        first.save(checkpoints)
        checkpoints.wait()
    second.restore(checkpoints)
    checkpoints.close()
    second.run()
    np.testing.assert_array_equal(second.state.params, whole.state.params)
    for one, other in zip(*(jax.tree.leaves(t.state.loader.frames) for t in (second, whole)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_memory_is_foretold() -> None:
    trainer = trainer_of("algorithm.options.buffer_size=4000")
    loader = trainer.state.loader
    stored = sum(leaf.nbytes for leaf in jax.tree.leaves((loader.fragments, loader.frames, trainer.state.actor.window)))
    sizes = footprint._sizes(trainer.config, trainer.env, trainer.network)
    (part,) = (part for part in footprint.parts(trainer.config, sizes) if part.what == "replay buffer")
    assert part.host + part.device == pytest.approx(2 * stored, rel=0.02), "and once more while it is restored"
    assert stored < 4000 * 1.1 * 84 * 84


def test_independent_actors_on_the_host_learn_the_same_on_several_devices() -> None:
    """Their program has all of its state on every device, so that the buffer must not be taken for a part."""
    one, two = (
        trainer_of("system=distributed_dqn", "system.actor_shards=1", f"engine.devices={devices}") for devices in (1, 2)
    )
    for trainer in (one, two):
        trainer.run()
    np.testing.assert_allclose(two.state.params, one.state.params, rtol=1e-3, atol=1e-5)
    np.testing.assert_array_equal(two.state.loader.fragments.version, one.state.loader.fragments.version)
