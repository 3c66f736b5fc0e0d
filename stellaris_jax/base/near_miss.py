"""Suggestions for misspelt names: near misses among config keys, choices and environments."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def did_you_mean(word: str, names: Iterable[str]) -> str:
    """End of a sentence: '; did you mean NAME?' for the dotted name most like `word`, '.' if none is like it."""
    score, name = max(((_resemblance(word, name), name) for name in names), default=(0.0, ""), key=lambda pair: pair[0])
    return f"; did you mean {name}?" if score >= 0.6 else "."


def _resemblance(word: str, name: str) -> float:
    """Likeness in [0, 1] of two dotted names, mostly of their last parts, which may be abbreviated."""
    group, _, leaf = word.rpartition(".")
    name_group, _, name_leaf = name.rpartition(".")
    score = 0.9 if _abbreviates(leaf, name_leaf) else _likeness(leaf, name_leaf)
    if group:
        score = 0.6 * score + 0.4 * _likeness(group, name_group)
    return score


def _likeness(a: str, b: str) -> float:
    """Likeness in [0, 1] of two words; underscores do not count."""
    return difflib.SequenceMatcher(None, a.replace("_", ""), b.replace("_", "")).ratio()


def _abbreviates(short: str, name: str) -> bool:
    """Whether `short` is a common abbreviation of `name`: lr, ent_coef, or steps for a name of several words."""
    words, parts = name.split("_"), short.split("_")
    if len(words) < 2 or short == name:
        return False
    initials = short == "".join(word[0] for word in words)
    prefixes = len(parts) == len(words) and all(w.startswith(p) for w, p in zip(words, parts, strict=True))
    return initials or prefixes or (len(short) > 2 and any(word.startswith(short) for word in words))
