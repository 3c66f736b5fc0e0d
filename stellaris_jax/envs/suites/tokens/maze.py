"""Token task with long completions and sparse right ones: ways through a maze."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.envs.base import Array
from stellaris_jax.envs.suites.tokens.task import END, PAD, TokenTask, ended, length_of

MOVES = "udlr"
FAR = 10_000
LEAST = 3
"""Fewest moves from the start to the goal."""


class Maze(TokenTask):
    """Way from `S` to `G` in a square of `size` rows, read row by row: moves u, d, l and r, and `END` at the goal.

    A third of the cells are walls (`#`). A move into a wall or out of the square is wrong; detours are not.
    """

    name = "tokens/maze"
    characters = ".#SG=udlr"

    def __init__(self, size: int = 4):
        if not 2 < size <= 15:
            raise ConfigError(f"env.kwargs.size={size} must be from 3 to 15.")
        self.size = size
        self.prompt_length, self.longest = size * size + 1, size * size

    def prompt(self, key: Array) -> Array:
        def again(so_far: tuple[Array, Array, Array]) -> Array:
            return (so_far[2] < LEAST) | (so_far[2] >= self.longest)

        def other(so_far: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
            key, walls, places = jax.random.split(so_far[0], 3)
            cells = self.size * self.size
            free = jax.random.uniform(walls, (cells,)) > 1 / 3
            start, goal = jax.random.choice(places, cells, (2,), replace=False)
            free = free.at[start].set(True).at[goal].set(True)
            text = jnp.where(free, self.token("."), self.token("#"))
            text = text.at[start].set(self.token("S")).at[goal].set(self.token("G"))
            return key, jnp.append(text, self.token("=")), self._distances(free, goal)[start]

        prompt: Array = jax.lax.while_loop(again, other, (key, jnp.zeros(self.prompt_length, jnp.int32), jnp.int32(0)))[
            1
        ]
        return prompt

    def _steps(self, cell: Array) -> Array:
        """Cells `[4]` after each move from a cell; -1 out of the square."""
        row, column = cell // self.size, cell % self.size
        rows, columns = row + jnp.array([-1, 1, 0, 0]), column + jnp.array([0, 0, -1, 1])
        inside = (rows >= 0) & (rows < self.size) & (columns >= 0) & (columns < self.size)
        return jnp.where(inside, rows * self.size + columns, -1)

    def _distances(self, free: Array, goal: Array) -> Array:
        """Moves from each cell to the goal; `FAR` if there is no way."""
        cells = self.size * self.size
        after = jax.vmap(self._steps)(jnp.arange(cells))

        def closer(_: Array, distance: Array) -> Array:
            near = jnp.where(after >= 0, distance[after], FAR).min(axis=1) + 1
            return jnp.where(free, jnp.minimum(distance, near), FAR)

        start = jnp.full(cells, FAR, jnp.int32).at[goal].set(0)
        return jax.lax.fori_loop(0, cells, closer, start)

    def _read(self, prompt: Array) -> tuple[Array, Array, Array]:
        """Free cells, start and goal of a prompt."""
        cells = prompt[:-1]
        return cells != self.token("#"), jnp.argmax(cells == self.token("S")), jnp.argmax(cells == self.token("G"))

    def demonstrate(self, key: Array, prompt: Array) -> Array:
        free, start, goal = self._read(prompt)
        distance, first = self._distances(free, goal), self.token(MOVES[0])

        def move(at: Array, key: Array) -> tuple[Array, Array]:
            after = self._steps(at)
            near = jnp.where(after >= 0, distance[after], FAR)
            chosen = jax.random.categorical(key, jnp.where(near == near.min(), 0.0, -jnp.inf))
            there = at == goal
            return jnp.where(there, at, after[chosen]), jnp.where(there, PAD, chosen + first)

        moves = jax.lax.scan(move, start, jax.random.split(key, self.longest))[1]
        return moves.at[jnp.sum(moves != PAD)].set(END)

    def verify(self, prompt: Array, completion: Array) -> Array:
        free, start, goal = self._read(prompt)
        length, first = length_of(completion), self.token(MOVES[0])

        def move(so_far: tuple[Array, Array], x: tuple[Array, Array]) -> tuple[tuple[Array, Array], None]:
            (at, proper), (token, place) = so_far, x
            chosen = token - first
            after = self._steps(at)[jnp.clip(chosen, 0, 3)]
            possible = (chosen >= 0) & (chosen < 4) & (after >= 0) & free[after]
            counts = place < length
            return (jnp.where(counts & possible, after, at), proper & (possible | ~counts)), None

        places = jnp.arange(self.longest)
        at, proper = jax.lax.scan(move, (start, jnp.bool_(True)), (completion, places))[0]
        return proper & (at == goal) & ended(completion)
