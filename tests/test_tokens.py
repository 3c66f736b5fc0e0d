"""Token tasks: prompts, verifiers, demonstrations, groups, and what fragments of completions hold."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reference_tokens import VERIFIERS

from stellaris_jax.envs.suites.tokens import make
from stellaris_jax.envs.suites.tokens.env import TokenEnv
from stellaris_jax.envs.suites.tokens.task import END, HELD_OUT, PAD, TokenTask
from stellaris_jax.envs.suites.tokens.tasks import TASKS

OTHERS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in TASKS),
    ("addition", {"digits": 4}),
    ("sort", {"length": 3}),
    ("maze", {"size": 3}),
    ("tail", {"tail": 0.5}),
    ("tail", {"longest": 16}),
]


def task_of(name: str, options: dict[str, Any]) -> TokenTask:
    return make(name, **options).task


def prompts(task: TokenTask, number: int, held_out: bool = False, seed: int = 0) -> np.ndarray:
    draw = jax.jit(jax.vmap(lambda key: task.draw(key, held_out)))
    return np.asarray(draw(jax.random.split(jax.random.key(seed), number)))


def verified(task: TokenTask, prompt: np.ndarray, completion: np.ndarray) -> np.ndarray:
    return np.asarray(jax.jit(jax.vmap(task.verify))(prompt.astype(np.int32), completion.astype(np.int32)))


def is_right(task: TokenTask, prompt: np.ndarray, completion: np.ndarray) -> bool:
    """Verdict of the plain verifier; a completion without an end is wrong."""
    if END not in completion:
        return False
    text = "".join(task.decode(token) or "?" for token in completion[: int(np.argmax(completion == END))])
    return VERIFIERS[task.name.removeprefix("tokens/")](task.decode(prompt), text)


@pytest.mark.parametrize(("name", "options"), OTHERS)
def test_demonstrations_are_right(name: str, options: dict[str, Any]) -> None:
    task = task_of(name, options)
    prompt = prompts(task, 200)
    keys = jax.random.split(jax.random.key(1), len(prompt))
    completion = np.asarray(jax.jit(jax.vmap(task.demonstrate))(keys, prompt.astype(np.int32)))
    assert completion.shape == (len(prompt), task.longest) and prompt.shape[1] == task.prompt_length
    assert ((completion == END).sum(axis=1) == 1).all()
    assert verified(task, prompt, completion).all()
    assert all(is_right(task, *pair) for pair in zip(prompt, completion, strict=True))


@pytest.mark.parametrize(("name", "options"), OTHERS)
def test_verifiers_agree_with_plain_ones_on_wrong_completions(name: str, options: dict[str, Any]) -> None:
    """One token of a right completion is another one, or it ends elsewhere."""
    task, random = task_of(name, options), np.random.default_rng(2)
    prompt = np.repeat(prompts(task, 60), 10, axis=0)
    keys = jax.random.split(jax.random.key(1), len(prompt))
    completion = np.array(jax.jit(jax.vmap(task.demonstrate))(keys, prompt.astype(np.int32)))
    for row in completion[1:]:
        end = int(np.argmax(row == END))
        place = random.integers(0, min(end + 2, task.longest))
        row[place] = random.integers(PAD, task.vocabulary)
        if (row == END).any():
            row[int(np.argmax(row == END)) + 1 :] = PAD
    expected = [is_right(task, *pair) for pair in zip(prompt, completion, strict=True)]
    assert any(expected) and not all(expected)
    assert verified(task, prompt, completion).tolist() == expected


@pytest.mark.parametrize("name", TASKS)
def test_no_prompt_is_on_both_sides(name: str) -> None:
    task = task_of(name, {})
    training, held_out = ({*map(bytes, prompts(task, 2000, side))} for side in (False, True))
    assert training and held_out and training.isdisjoint(held_out)


def test_so_many_prompts_are_held_out() -> None:
    task = task_of("countdown", {})
    drawn = jax.vmap(task.prompt)(jax.random.split(jax.random.key(0), 4000))
    share = float(jax.vmap(task.held_out)(drawn).mean())
    assert abs(share - 1 / HELD_OUT) < 4 * np.sqrt(1 / HELD_OUT / 4000)


def test_lengths_have_a_heavy_tail() -> None:
    task = task_of("tail", {})
    lengths = [int(task.decode(row)[1:4]) for row in prompts(task, 3000)]
    assert min(lengths) == 4 and max(lengths) > 100
    # A Pareto of exponent 1, cut at 128: P(length >= 16) is (4/16 - 4/128) / (1 - 4/128).
    assert abs(np.mean(np.array(lengths) >= 16) - (4 / 16 - 4 / 128) / (1 - 4 / 128)) < 0.03


def test_slack_favours_long_completions() -> None:
    task = task_of("tail", {"slack": 0.25})
    prompt = np.stack([task.encode("a004=", 5), task.encode("a100=", 5)])
    three, ninety = (np.full(task.longest, PAD) for _ in range(2))
    for row, length in ((three, 2), (ninety, 80)):
        row[:length], row[length] = task.token("a"), END
    assert verified(task, prompt, np.stack([three, ninety])).tolist() == [False, True]


def step(env: TokenEnv, state: Any, action: Any, seed: int = 9) -> Any:
    keys = jax.random.split(jax.random.key(seed), len(state.length))
    return env.step(keys, state, jnp.asarray(action), env.starts(jax.random.key(seed)))


def test_groups_share_their_prompts_whatever_step_they_end_in() -> None:
    env = make("sort", group=4)
    state, _ = env.reset(jax.random.split(jax.random.key(0), 8))
    random = np.random.default_rng(0)
    for _ in range(40):
        state, _ = step(env, state, random.integers(0, env.task.vocabulary, 8))
    prompt_of: dict[tuple[int, int], set[bytes]] = {}
    for place, (row, number) in enumerate(zip(np.asarray(state.prompt), np.asarray(state.number), strict=True)):
        prompt_of.setdefault((place // 4, int(number)), set()).add(bytes(row))
    assert len(prompt_of) < 8 and all(len(rows) == 1 for rows in prompt_of.values())


def test_a_completion_is_observed_token_by_token_and_verified_at_its_end() -> None:
    env = make("addition", group=2)
    state, obs = env.reset(jax.random.split(jax.random.key(3), 2))
    text = env.task.decode(obs[0, :-1])
    right = env.task.encode(str(sum(map(int, text[:-1].split("+")))), 3, front=False)
    assert env.task.decode(obs[0, -1:]) == "="
    for token in right[right != PAD]:
        state, result = step(env, state, [token, END])
        assert result.reward[0] == 0.0 and not result.terminated[0] and not result.truncated.any()
        assert result.final_obs[0, -1] == token == result.obs[0, -1]
    state, result = step(env, state, [END, END])
    assert result.reward.tolist() == [1.0, 0.0] and result.terminated.all()
    assert int(state.length[0]) == 0 and int(state.number[0]) == 1


def test_a_completion_without_an_end_is_wrong_and_over() -> None:
    env = make("addition", group=1)
    state, _ = env.reset(jax.random.split(jax.random.key(3), 1))
    for number in range(env.task.longest):
        state, result = step(env, state, [env.task.token("1")])
        assert bool(result.terminated[0]) == (number == env.task.longest - 1)
    assert result.reward[0] == 0.0


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.3, 1.0]))
def test_demonstrations_of_the_environment(seed: int, errors: float) -> None:
    env = make("addition")
    shown = jax.jit(lambda key: env.demonstrations(key, 64, errors))(jax.random.key(seed))
    completion = np.where(shown.valid, shown.action, PAD).T
    assert (np.asarray(shown.obs)[0, :, -1] == env.task.token("=")).all()
    assert (np.asarray(shown.obs)[1:, :, -1] == np.asarray(shown.action)[:-1]).all()
    prompt = np.asarray(shown.obs)[0, :, :-1]
    right = verified(env.task, prompt, completion).mean()
    assert right == 1.0 if errors == 0.0 else right < 1.0
    assert not jax.vmap(env.task.held_out)(prompt).any()
