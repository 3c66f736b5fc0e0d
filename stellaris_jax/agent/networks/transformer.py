"""Decoder-only transformer that completes prompts: generation with a key-value cache, and evaluation in one pass.

The sequence of an environment is its prompt `[P]` and its completion `[L]` without the last token, `S = P + L - 1`
tokens. Logits at the prompt's last token are those of the completion's first. Generation keeps keys and values of each
layer in the carry; evaluation of a minibatch computes all positions at once, under a causal mask.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris_jax.agent.networks.policy_network import DISTRIBUTION, PolicyNetwork
from stellaris_jax.agent.networks.recurrent import Past, reset_carry
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.registry import register
from stellaris_jax.config.schema import knob
from stellaris_jax.config.sections import NetworkConfig
from stellaris_jax.config.tree import Config
from stellaris_jax.envs.base import Space
from stellaris_jax.envs.token_space import Tokens

LOWEST = -1e30
"""Logit of what attention leaves out."""


class Context(NamedTuple):
    """State of generation, arrays `[n, ...]`.

    Attributes:
      position: tokens of the completion so far, int32 `[n]`.
      tokens: the sequence so far, uint8 `[n, S]`, then zeros; `None` unless keys and values are computed anew.
      keys: keys of each layer at each position, `[n, S, width]`; those from the current position on are not used.
      values: values likewise.
    """

    position: jax.Array
    tokens: Any
    keys: tuple[jax.Array, ...]
    values: tuple[jax.Array, ...]


class Block(nn.Module):
    """Layer of a transformer: attention and a perceptron, each behind a layer norm and beside a residual.

    Attributes:
      heads: heads of the attention.
      width: width of the layer.
      inner: width of the perceptron.
      outer_scale: deviation of the weights that end in the residual.
    """

    heads: int
    width: int
    inner: int
    outer_scale: float

    def setup(self) -> None:
        normal = nn.initializers.normal
        self.before_attention, self.before_perceptron = nn.LayerNorm(), nn.LayerNorm()
        self.project = nn.Dense(3 * self.width, kernel_init=normal(0.02))
        self.attended = nn.Dense(self.width, kernel_init=normal(self.outer_scale))
        self.widen = nn.Dense(self.inner, kernel_init=normal(0.02))
        self.narrow = nn.Dense(self.width, kernel_init=normal(self.outer_scale))

    def queries(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Queries, keys and values `[..., width]` of inputs `[..., width]`."""
        query, key, value = jnp.split(self.project(self.before_attention(x)), 3, axis=-1)
        return query, key, value

    def end(self, x: jax.Array, attended: jax.Array) -> jax.Array:
        """Outputs from inputs and what their attention has gathered, `[..., width]`."""
        x = x + self.attended(attended)
        return x + self.narrow(nn.gelu(self.widen(self.before_perceptron(x))))

    def __call__(self, x: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Outputs, keys and values of whole sequences `[n, S, width]`."""
        query, key, value = self.queries(x)
        length = x.shape[1]
        split = (*x.shape[:2], self.heads, -1)
        scores = _product("nqhd,nkhd->nhqk", query.reshape(split), key.reshape(split))
        causal = jnp.tril(jnp.ones((length, length), bool))
        weights = self._weights(jnp.where(causal, scores, LOWEST))
        attended = _product("nhqk,nkhd->nqhd", weights, value.reshape(split)).reshape(x.shape)
        return self.end(x, attended.astype(x.dtype)), key, value

    def step(
        self, x: jax.Array, keys: jax.Array, values: jax.Array, place: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Outputs `[n, width]` of inputs `[n, width]` at a position, and keys and values `[n, S, width]` with it."""
        query, key, value = self.queries(x)
        keys, values = (
            jax.lax.dynamic_update_slice_in_dim(all_, new[:, None].astype(all_.dtype), place, axis=1)
            for all_, new in ((keys, key), (values, value))
        )
        split = (*keys.shape[:2], self.heads, -1)
        scores = _product("nhd,nkhd->nhk", query.reshape(len(x), self.heads, -1), keys.reshape(split))
        weights = self._weights(jnp.where(jnp.arange(keys.shape[1]) <= place, scores, LOWEST))
        attended = _product("nhk,nkhd->nhd", weights, values.reshape(split)).reshape(x.shape)
        return self.end(x, attended.astype(x.dtype)), keys, values

    def _weights(self, scores: jax.Array) -> jax.Array:
        return nn.softmax(scores * (self.width // self.heads) ** -0.5, axis=-1)


def _product(formula: str, first: jax.Array, second: jax.Array) -> jax.Array:
    """Product of attention, summed in float32 whatever its factors' type."""
    return jnp.einsum(formula, first, second, preferred_element_type=jnp.float32)


class Decoder(nn.Module):
    """Decoder: embeddings of tokens and positions, blocks, and logits.

    Attributes:
      vocabulary: number of tokens V.
      positions: length S of the longest sequence.
      layers, heads, width, inner: sizes of the blocks.
    """

    vocabulary: int
    positions: int
    layers: int
    heads: int
    width: int
    inner: int

    def setup(self) -> None:
        normal = nn.initializers.normal(0.02)
        self.tokens = nn.Embed(self.vocabulary, self.width, embedding_init=normal)
        self.places = nn.Embed(self.positions, self.width, embedding_init=normal)
        scale = 0.02 / (2 * self.layers) ** 0.5  # GPT-2: the residual's variance does not grow with the layers
        self.blocks = [Block(self.heads, self.width, self.inner, scale) for _ in range(self.layers)]
        self.last = nn.LayerNorm()
        self.logits = nn.Dense(self.vocabulary, use_bias=False, kernel_init=normal)

    def __call__(self, tokens: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        """Outputs `[n, s, width]` before the logits, keys and values, for sequences of tokens `[n, s]`, s <= S."""
        x = self.tokens(tokens.astype(jnp.int32)) + self.places(jnp.arange(tokens.shape[1]))
        keys, values = [], []
        for block in self.blocks:
            x, key, value = block(x)
            keys.append(key)
            values.append(value)
        return x, tuple(keys), tuple(values)

    def score(self, x: jax.Array) -> jax.Array:
        """Logits `[..., V]` of outputs `[..., width]`."""
        logits: jax.Array = self.logits(self.last(x))
        return logits.astype(jnp.float32)

    def whole(self, tokens: jax.Array, first: int) -> jax.Array:
        """Logits `[n, s - first, V]` at the positions from `first` on, for sequences of tokens `[n, s]`."""
        return self.score(self(tokens)[0][:, first:])

    def step(
        self,
        token: jax.Array,
        place: jax.Array,
        keys: tuple[jax.Array, ...],
        values: tuple[jax.Array, ...],
    ) -> tuple[jax.Array, tuple[jax.Array, ...], tuple[jax.Array, ...]]:
        """Logits `[n, V]` of tokens `[n]` at a position, with keys and values that have it."""
        x = self.tokens(token.astype(jnp.int32)) + self.places(place)
        new_keys, new_values = [], []
        for block, key, value in zip(self.blocks, keys, values, strict=True):
            x, key, value = block.step(x, key, value, place)
            new_keys.append(key)
            new_values.append(value)
        return self.score(x), tuple(new_keys), tuple(new_values)


@register.policy("transformer")
class Transformer(PolicyNetwork):
    """Decoder-only transformer (GPT-2's form) for token tasks, without a critic.

    Environments of a batch generate together: all that still complete a prompt are at the same token.
    """

    outputs = (DISTRIBUTION,)
    recurrent = True
    stores_carry = False
    episodic = True

    layers: int = knob(2, "layers", within="[1, 100]")
    heads: int = knob(4, "attention heads of a layer; they share its width", within="[1, 100]")
    width: int = knob(64, "width of a layer", within="[1, 100000]")
    inner: int = knob(0, "width of a layer's perceptron; 0: four times the layer's", within="[0, 1000000]")
    temperature: float = knob(1.0, "divisor of all logits, in sampling and in learning", within="(0, inf)")
    recompute: bool = knob(
        False, "keys and values of earlier tokens are computed anew when an actor fetches a policy within a completion"
    )

    @classmethod
    def conditions(cls, config: Config, section: str) -> Iterator[tuple[bool, str]]:
        yield from super().conditions(config, section)
        options = config.network.options
        width, heads = options.get("width", 64), options.get("heads", 4)
        yield (
            not isinstance(width, int) or not isinstance(heads, int) or heads < 1 or width % heads == 0,
            f"network.options.heads={heads} must divide network.options.width={width}.",
        )

    def __init__(self, observation_space: Any, action_space: Space, config: NetworkConfig):
        super().__init__(observation_space, action_space, config)
        if not isinstance(observation_space, Tokens):
            raise ConfigError(
                f"network.policy={config.policy} completes prompts of token tasks (env.name=tokens/...), not "
                f"observations of the shape {[*observation_space.shape]}."
            )
        self.prompt_length, self.longest = observation_space.prompt_length, observation_space.longest
        self.length = self.prompt_length + self.longest - 1
        sizes = (self.layers, self.heads, self.width, self.inner or 4 * self.width)
        self._decoder = Decoder(observation_space.vocabulary, self.length, *sizes)

    def init_tree(self, key: jax.Array) -> dict[str, Any]:
        tree: dict[str, Any] = self._decoder.init(key, jnp.zeros((1, 2), jnp.int32), 0, method="whole")["params"]
        return tree

    # Generation --------------------------------------------------------------------------------------------------

    def initial_carry(self, number: int) -> Context:
        cache = tuple(jnp.zeros((number, self.length, self.width)) for _ in range(self.layers))
        tokens = jnp.zeros((number, self.length), jnp.uint8) if self.recompute else None
        return Context(jnp.zeros(number, jnp.int32), tokens, cache, cache)

    def begin(self, tree: dict[str, Any], obs: jax.Array, carry: Context) -> Context:
        """Context with keys and values of the prompts, or with `recompute` of all tokens so far."""
        fresh = carry.position == 0
        prompt = jnp.pad(obs[:, :-1], ((0, 0), (0, self.longest - 1)))
        if carry.tokens is None:
            known = prompt[:, : max(self.prompt_length - 1, 1)]
            anew = fresh
        else:
            carry = carry._replace(tokens=jnp.where(fresh[:, None], prompt, carry.tokens))
            known, anew = carry.tokens, jnp.ones_like(fresh)
        _, keys, values = self._apply(tree, known)

        def put(old: jax.Array, new: jax.Array) -> jax.Array:
            computed = new.astype(old.dtype)
            return old.at[:, : new.shape[1]].set(jnp.where(anew[:, None, None], computed, old[:, : new.shape[1]]))

        return carry._replace(keys=jax.tree.map(put, carry.keys, keys), values=jax.tree.map(put, carry.values, values))

    def act(self, tree: dict[str, Any], obs: jax.Array, carry: Context) -> tuple[jax.Array, Context]:
        place = self.prompt_length - 1 + jnp.max(carry.position)
        place = jnp.minimum(place, self.length - 1)
        logits, keys, values = self._apply(tree, obs[:, -1], place, carry.keys, carry.values, method="step")
        tokens = carry.tokens
        if tokens is not None:
            tokens = jax.lax.dynamic_update_slice_in_dim(tokens, obs[:, -1:], place, axis=1)
        return logits / self.temperature, Context(carry.position + 1, tokens, keys, values)

    def next_carry(self, before: Context, after: Context, ends: tuple[jax.Array, ...], alive: Any = None) -> Context:
        # Keys and values of ended completions stay: `begin` replaces them.
        position = reset_carry(after.position, *ends)
        return after._replace(position=position if alive is None else jnp.where(alive, position, before.position))

    # Evaluation --------------------------------------------------------------------------------------------------

    def evaluate(self, tree: dict[str, Any], obs: jax.Array, past: Past | None = None) -> Mapping[str, jax.Array]:
        steps = min(self.longest, len(obs))
        by_step = obs.reshape(steps, -1, obs.shape[-1])
        sequence = jnp.concatenate([by_step[0, :, :-1], by_step[1:, :, -1].T], axis=1)
        logits = self._apply(tree, sequence, self.prompt_length - 1, method="whole") / self.temperature
        return {DISTRIBUTION: jnp.moveaxis(logits, 0, 1).reshape(len(obs), -1)}

    def _apply(self, tree: dict[str, Any], *inputs: Any, method: str | None = None) -> Any:
        return self._decoder.apply({"params": tree}, *inputs, method=method)
