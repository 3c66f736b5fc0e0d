"""Errors whose message is one sentence for the user."""

from __future__ import annotations

LONGEST_LINE = 2000
"""Largest number of characters in a message."""


def printable(text: str) -> str:
    """Text for a terminal, on one line, with escape sequences spelled out, because names may come from strangers.

    >>> printable("run\\x1b[2J of\\nmine")
    'run\\\\x1b[2J of mine'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text)


class ConfigError(ValueError):
    """Configuration that cannot run; the message is one sentence with the key, the value and what is accepted."""

    def __init__(self, sentence: str):
        line = printable(str(sentence))
        super().__init__(line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}...")


class RunError(RuntimeError):
    """Run that could not continue or ended without a result; the message is one sentence."""

    def __init__(self, sentence: str):
        super().__init__(printable(str(sentence)))
