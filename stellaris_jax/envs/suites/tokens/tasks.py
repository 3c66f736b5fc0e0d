"""The token tasks that come with the package."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from stellaris_jax.base.draws import in_one_row
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import Array
from stellaris_jax.envs.suites.tokens.maze import Maze
from stellaris_jax.envs.suites.tokens.task import END, PAD, TokenTask, ended, length_of


def _limited(key: str, value: int, least: int, most: int) -> int:
    """Return `value` if it is within the bounds, else raise `ConfigError`."""
    if not least <= value <= most:
        raise ConfigError(f"env.kwargs.{key}={value} must be from {least} to {most}.")
    return value


class Addition(TokenTask):
    """Sum of two numbers of 1 to `digits` digits: `7+45=` has the completion `52.`, where the point is `END`."""

    name = "tokens/addition"
    characters = "0123456789+="

    def __init__(self, digits: int = 2):
        self.digits = _limited("digits", digits, 1, 6)
        self.prompt_length, self.longest = 2 * digits + 2, digits + 2

    def prompt(self, key: Array) -> Array:
        lengths, digits = (jax.random.fold_in(key, i) for i in range(2))
        number = jax.random.randint(lengths, (2,), 1, self.digits + 1)
        drawn = in_one_row(jax.random.randint, digits, (2, self.digits), 0, 10)
        places = jnp.arange(self.digits)[::-1]
        used = places < number[:, None]
        leads = (places == number[:, None] - 1) & (number[:, None] > 1)
        drawn = jnp.where(leads, jnp.maximum(drawn, 1), drawn)  # no leading zeros
        zero = self.token("0")
        first, second = jnp.where(used, drawn + zero, PAD)
        text = jnp.concatenate([first, jnp.array([self.token("+")]), second, jnp.array([self.token("=")])])
        return _to_the_end(text)

    def demonstrate(self, key: Array, prompt: Array) -> Array:
        zero, plus = self.token("0"), self.token("+")
        digits = jnp.where((prompt >= zero) & (prompt < zero + 10), prompt - zero, -1)
        second = jnp.cumsum(prompt == plus) > 0

        def append(so_far: Array, x: tuple[Array, Array]) -> tuple[Array, None]:
            digit, side = x
            place = jnp.arange(2) == side
            return jnp.where(place & (digit >= 0), 10 * so_far + digit, so_far), None

        numbers = jax.lax.scan(append, jnp.zeros(2, jnp.int32), (digits, second.astype(jnp.int32)))[0]
        return self._written(numbers.sum())

    def _written(self, number: Array) -> Array:
        """Completion with the digits of a number and `END`."""
        powers = jnp.array([10**i for i in range(self.digits, -1, -1)])
        digits = number // powers % 10
        used = (number >= powers) | (powers == 1)
        text = jnp.where(used, digits + self.token("0"), PAD)
        return _to_the_front(jnp.append(text, END))

    def verify(self, prompt: Array, completion: Array) -> Array:
        return jnp.all(completion == self.demonstrate(jax.random.key(0), prompt))


class Sort(TokenTask):
    """2 to `length` letters in alphabetical order: `dab=` has the completion `abd.`."""

    name = "tokens/sort"
    characters = "abcdefgh="

    def __init__(self, length: int = 6):
        self.length = _limited("length", length, 2, 64)
        self.prompt_length, self.longest = length + 1, length + 1

    def prompt(self, key: Array) -> Array:
        length, letters = (jax.random.fold_in(key, i) for i in range(2))
        number = jax.random.randint(length, (), 2, self.length + 1)
        first, last = self.token("a"), self.token("h")
        drawn = jax.random.randint(letters, (self.length,), first, last + 1)
        used = jnp.arange(self.length)[::-1] < number
        return jnp.append(jnp.where(used, drawn, PAD), self.token("="))

    def demonstrate(self, key: Array, prompt: Array) -> Array:
        letters = prompt[:-1]
        ordered = jnp.sort(jnp.where(letters == PAD, 1000, letters))
        return jnp.append(jnp.where(ordered == 1000, PAD, ordered), PAD).at[jnp.sum(letters != PAD)].set(END)

    def verify(self, prompt: Array, completion: Array) -> Array:
        return jnp.all(completion == self.demonstrate(jax.random.key(0), prompt))


class Countdown(TokenTask):
    """Number reached from three given ones by +, - and *, from left to right: `3 4 5:17=` has `3*4+5.`.

    Each given number may be used once at most, and not all need to be. Several completions are right.
    """

    name = "tokens/countdown"
    characters = "0123456789+-* :="
    prompt_length, longest = 9, 6

    def __init__(self) -> None:
        numbers = [order for size in (1, 2, 3) for order in itertools.permutations(range(3), size)]
        all_ = [(order, signs) for order in numbers for signs in itertools.product(range(3), repeat=len(order) - 1)]
        self._numbers = np.array([[*order, *[0] * (3 - len(order))] for order, _ in all_])
        self._signs = np.array([[*signs, *[3] * (2 - len(signs))] for _, signs in all_])  # 3: nothing follows

    def prompt(self, key: Array) -> Array:
        drawn, chosen = (jax.random.fold_in(key, i) for i in range(2))
        given = jax.random.randint(drawn, (3,), 1, 10)
        values = self._values(given)
        # One of the targets that can be reached and written with two digits, long expressions first.
        weight = jnp.where((values >= 1) & (values <= 99), 3.0 ** (self._signs < 3).sum(axis=1), 0.0)
        target = values[jax.random.categorical(chosen, jnp.log(weight))]
        zero, space = self.token("0"), self.token(" ")
        tens = jnp.where(target >= 10, target // 10 + zero, space)
        tokens = [given[0] + zero, space, given[1] + zero, space, given[2] + zero, self.token(":")]
        return jnp.stack([*map(jnp.int32, tokens), tens, target % 10 + zero, jnp.int32(self.token("="))])

    def _values(self, given: Array) -> Array:
        """Values of all expressions over three given numbers."""
        chosen = given[self._numbers]
        value = chosen[:, 0]
        for place in range(2):
            value = _applied(jnp.asarray(self._signs[:, place]), value, chosen[:, place + 1])
        return value

    def _read(self, prompt: Array) -> tuple[Array, Array]:
        """Given numbers `[3]` and the target of a prompt."""
        zero = self.token("0")
        tens = jnp.where(prompt[6] == self.token(" "), 0, prompt[6] - zero)
        return prompt[jnp.array([0, 2, 4])] - zero, 10 * tens + prompt[7] - zero

    def demonstrate(self, key: Array, prompt: Array) -> Array:
        given, target = self._read(prompt)
        right = self._values(given) == target
        chosen = jax.random.categorical(key, jnp.where(right, 0.0, -jnp.inf))
        numbers, signs = given[jnp.asarray(self._numbers)[chosen]], jnp.asarray(self._signs)[chosen]
        zero, plus = self.token("0"), self.token("+")
        follows = signs < 3
        tokens = [numbers[0] + zero]
        for place in range(2):
            tokens += [jnp.where(follows[place], signs[place] + plus, PAD)]
            tokens += [jnp.where(follows[place], numbers[place + 1] + zero, PAD)]
        written = jnp.stack([*tokens, jnp.int32(PAD)])
        return written.at[1 + 2 * jnp.sum(follows)].set(END)

    def verify(self, prompt: Array, completion: Array) -> Array:
        given, target = self._read(prompt)
        zero, plus, length = self.token("0"), self.token("+"), length_of(completion)
        digits, signs = completion - zero, completion - plus
        places = jnp.arange(self.longest)
        in_text, odd = places < length, places % 2 == 1
        is_digit, is_sign = (digits >= 1) & (digits <= 9), (signs >= 0) & (signs < 3)
        proper = jnp.all(jnp.where(odd, is_sign, is_digit) | ~in_text) & (length % 2 == 1) & ended(completion)
        used = in_text & ~odd
        each = jnp.arange(1, 10)
        times = jnp.sum((digits == each[:, None]) & used, axis=1)
        within = jnp.all(times <= jnp.sum(given == each[:, None], axis=1))
        value = digits[0]
        for place in range(1, self.longest - 1, 2):
            follows = place + 1 < length
            value = jnp.where(follows, _applied(signs[place], value, digits[place + 1]), value)
        return proper & within & (value == target)


class Tail(TokenTask):
    """A line of so many letters: `c012=` has twelve times c, then `END`. Lengths have a heavy tail, from 4 letters.

    A share `slack` of the length is tolerated. So with slack, long completions are right more often.
    """

    name = "tokens/tail"
    characters = "0123456789abcd="
    prompt_length = 5

    def __init__(self, slack: float = 0.0, tail: float = 1.0, longest: int = 128):
        if not 0.0 <= slack < 1.0:
            raise ConfigError(f"env.kwargs.slack={slack} must be at least 0 and below 1.")
        if not tail > 0.0:
            raise ConfigError(f"env.kwargs.tail={tail} must be above 0.")
        self.slack, self.tail, self.longest = slack, tail, _limited("longest", longest, 8, 1000)

    def prompt(self, key: Array) -> Array:
        letters, lengths = (jax.random.fold_in(key, i) for i in range(2))
        letter = jax.random.randint(letters, (), self.token("a"), self.token("d") + 1)
        # Pareto with the exponent `tail`, cut at the longest completion.
        share = jax.random.uniform(lengths) * (1.0 - (4.0 / self.longest) ** self.tail)
        number = jnp.minimum(jnp.int32(4.0 * (1.0 - share) ** (-1.0 / self.tail)), self.longest - 1)
        digits = number // jnp.array([100, 10, 1]) % 10 + self.token("0")
        return jnp.concatenate([letter[None], digits, jnp.array([self.token("=")])])

    def _read(self, prompt: Array) -> tuple[Array, Array]:
        """Letter and number of a prompt."""
        return prompt[0], jnp.sum((prompt[1:4] - self.token("0")) * jnp.array([100, 10, 1]))

    def demonstrate(self, key: Array, prompt: Array) -> Array:
        letter, number = self._read(prompt)
        places = jnp.arange(self.longest)
        return jnp.where(places < number, letter, jnp.where(places == number, END, PAD))

    def verify(self, prompt: Array, completion: Array) -> Array:
        letter, number = self._read(prompt)
        length = length_of(completion)
        same = jnp.all((completion == letter) | (jnp.arange(self.longest) >= length))
        return same & ended(completion) & (jnp.abs(length - number) <= jnp.floor(self.slack * number))


def _to_the_end(tokens: Array) -> Array:
    """Tokens with all `PAD` at the front, in the same order."""
    return tokens[jnp.argsort(tokens != PAD, stable=True)]


def _to_the_front(tokens: Array) -> Array:
    """Tokens with all `PAD` at the end, in the same order."""
    return tokens[jnp.argsort(tokens == PAD, stable=True)]


def _applied(sign: Array, left: Array, right: Array) -> Array:
    """Result of +, - or * (signs 0, 1 and 2); the left number for another sign."""
    return jnp.select([sign == 0, sign == 1, sign == 2], [left + right, left - right, left * right], left)


TASKS: dict[str, type[TokenTask]] = {
    kind.name.removeprefix("tokens/"): kind for kind in (Addition, Sort, Countdown, Maze, Tail)
}
