"""Token tasks, the transformer and group-relative losses once more, in plain Python and NumPy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# Verifiers of texts: a prompt without padding, a completion without its end, and whether it has one. ------------------


def addition(prompt: str, completion: str) -> bool:
    first, second = prompt.rstrip("=").split("+")
    return completion == str(int(first) + int(second))


def sort(prompt: str, completion: str) -> bool:
    return completion == "".join(sorted(prompt.rstrip("=")))


def countdown(prompt: str, completion: str) -> bool:
    given, target = prompt.rstrip("=").split(":")
    if len(completion) % 2 == 0:
        return False
    numbers, signs = completion[::2], completion[1::2]
    if not all(one in "123456789" for one in numbers) or not all(sign in "+-*" for sign in signs):
        return False
    if Counter(numbers) - Counter(given.split()):
        return False
    value = int(numbers[0])
    for sign, number in zip(signs, numbers[1:], strict=True):
        value = {"+": value + int(number), "-": value - int(number), "*": value * int(number)}[sign]
    return value == int(target)


def maze(prompt: str, completion: str) -> bool:
    cells = prompt.rstrip("=")
    size = math.isqrt(len(cells))
    place, goal = (divmod(cells.index(letter), size) for letter in "SG")
    for move in completion:
        if move not in "udlr":
            return False
        down, right = {"u": (-1, 0), "d": (1, 0), "l": (0, -1), "r": (0, 1)}[move]
        place = (place[0] + down, place[1] + right)
        if not (0 <= place[0] < size and 0 <= place[1] < size) or cells[place[0] * size + place[1]] == "#":
            return False
    return place == goal


def tail(prompt: str, completion: str) -> bool:
    return completion == prompt[0] * int(prompt[1:4])


VERIFIERS: dict[str, Callable[[str, str], bool]] = {
    "addition": addition, "sort": sort, "countdown": countdown, "maze": maze, "tail": tail,
}  # fmt: skip

# The transformer ------------------------------------------------------------------------------------------------------


def transformer(tree: dict[str, Any], tokens: Sequence[int], layers: int, heads: int) -> np.ndarray:
    """Logits `[S, V]` at every position of one sequence, in float64, position by position and head by head."""
    tree = {name: _doubled(part) for name, part in tree.items()}
    x = np.stack(
        [tree["tokens"]["embedding"][token] + tree["places"]["embedding"][i] for i, token in enumerate(tokens)]
    )
    for layer in range(layers):
        block = tree[f"blocks_{layer}"]
        query, key, value = np.split(_dense(block["project"], _norm(block["before_attention"], x)), 3, axis=1)
        size = query.shape[1] // heads
        attended = np.zeros_like(query)
        for position in range(len(tokens)):
            for head in range(heads):
                part = slice(head * size, (head + 1) * size)
                scores = key[: position + 1, part] @ query[position, part] / math.sqrt(size)
                weights = np.exp(scores - scores.max())
                attended[position, part] = weights / weights.sum() @ value[: position + 1, part]
        x = x + _dense(block["attended"], attended)
        wide = _dense(block["widen"], _norm(block["before_perceptron"], x))
        gelu = 0.5 * wide * (1 + np.tanh(math.sqrt(2 / math.pi) * (wide + 0.044715 * wide**3)))
        x = x + _dense(block["narrow"], gelu)
    return _norm(tree["last"], x) @ tree["logits"]["kernel"]


def _doubled(part: Any) -> Any:
    if isinstance(part, dict):
        return {name: _doubled(inner) for name, inner in part.items()}
    return np.asarray(part, np.float64)


def _dense(layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    return x @ layer["kernel"] + layer["bias"]


def _norm(layer: dict[str, np.ndarray], x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=1, keepdims=True)
    return centred / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6) * layer["scale"] + layer["bias"]


# Losses of completions: one list of tokens for each. ------------------------------------------------------------------


def group_advantages(returns: Sequence[float], size: int, scaled: bool, leave_one_out: bool = False) -> list[float]:
    """Advantages of completions, groups of `size` one after the other."""
    advantages: list[float] = []
    for begin in range(0, len(returns), size):
        group = np.array(returns[begin : begin + size])
        means = [np.delete(group, i).mean() if leave_one_out else group.mean() for i in range(size)]
        centred = group - np.array(means)
        advantages += [*(centred / np.sqrt(np.mean(centred**2) + 1e-8) if scaled else centred)]
    return advantages


def loss(
    log_ratios: Sequence[Sequence[float]],
    advantages: Sequence[float],
    low: float,
    high: float,
    mean: str,
    longest: int,
    by_sequence: bool,
) -> float:
    """Loss of GRPO, or of GSPO `by_sequence`, for log(pi / mu) of each token of each completion."""
    sums, means, tokens = 0.0, [], 0
    for log_ratio, advantage in zip(log_ratios, advantages, strict=True):
        terms = []
        for one in log_ratio:
            ratio = math.exp(sum(log_ratio) / len(log_ratio) if by_sequence else one)
            bounded = min(max(ratio, 1 - low), 1 + high)
            terms.append(-min(ratio * advantage, bounded * advantage))
        sums, tokens = sums + sum(terms), tokens + len(terms)
        means.append(sum(terms) / len(terms))
    return {"samples": sums / tokens, "sequences": sum(means) / len(means), "constant": sums / len(means) / longest}[
        mean
    ]
