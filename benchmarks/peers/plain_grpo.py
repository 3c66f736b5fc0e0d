"""Times GRPO of a plain loop in JAX and optax: what somebody writes for one experiment, without asynchrony.

The model (GPT-2's form), the batch, generation with keys and values, the loss and the optimizer are those of the job
`tokens_addition`. Prompts and the verifier are of stellaris_jax.

    python -m benchmarks.peers.plain_grpo tokens_addition --seed 0
"""

from __future__ import annotations

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import optax

from benchmarks.peers.contract import Figures, Goal, Stopwatch, main
from stellaris_jax.envs.suites.tokens import make
from stellaris_jax.envs.suites.tokens.task import END

LAYERS, HEADS, WIDTH = 2, 4, 64
GROUP, GROUPS = 8, 32
UPDATES, CHUNK = 300, 10
WARM, WARM_BATCH, WARM_RATE, ERRORS = 1500, 256, 1e-3, 0.7
RATE, CLIP, NORM = 3e-4, 0.2, 1.0
HELD_OUT = 512

TASK = make("addition").task
PROMPT, LONGEST = TASK.prompt_length, TASK.longest
Params = dict[str, Any]


def init(key: jax.Array) -> Params:
    """Parameters: embeddings, layers and the last matrix."""
    keys = iter(jax.random.split(key, 3 + 4 * LAYERS))

    def normal(*shape: int, scale: float = 0.02) -> jax.Array:
        return scale * jax.random.normal(next(keys), shape)

    def norm() -> Params:
        return {"scale": jnp.ones(WIDTH), "bias": jnp.zeros(WIDTH)}

    def layer() -> Params:
        deep = 0.02 / (2 * LAYERS) ** 0.5
        return {
            "norm1": norm(), "norm2": norm(),
            "qkv": normal(WIDTH, 3 * WIDTH), "qkv_bias": jnp.zeros(3 * WIDTH),
            "out": normal(WIDTH, WIDTH, scale=deep), "out_bias": jnp.zeros(WIDTH),
            "up": normal(WIDTH, 4 * WIDTH), "up_bias": jnp.zeros(4 * WIDTH),
            "down": normal(4 * WIDTH, WIDTH, scale=deep), "down_bias": jnp.zeros(WIDTH),
        }  # fmt: skip

    tokens, places = normal(TASK.vocabulary, WIDTH), normal(PROMPT + LONGEST - 1, WIDTH)
    layers = [layer() for _ in range(LAYERS)]
    return {
        "tokens": tokens,
        "places": places,
        "layers": layers,
        "norm": norm(),
        "last": normal(WIDTH, TASK.vocabulary),
    }


def normed(p: Params, x: jax.Array) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-6) * p["scale"] + p["bias"]


def heads(x: jax.Array) -> jax.Array:
    return x.reshape(*x.shape[:-1], HEADS, -1)


def attend(queries: jax.Array, keys: jax.Array, values: jax.Array, seen: jax.Array) -> jax.Array:
    """Attention of queries `[n, q, width]`; `seen` is a mask `[q, s]`."""
    scores = jnp.einsum("nqhd,nshd->nhqs", heads(queries), heads(keys)) / (WIDTH / HEADS) ** 0.5
    weights = jax.nn.softmax(jnp.where(seen, scores, -1e9))
    return jnp.einsum("nhqs,nshd->nqhd", weights, heads(values)).reshape(queries.shape)


def perceptron(p: Params, x: jax.Array) -> jax.Array:
    hidden = jax.nn.gelu(normed(p["norm2"], x) @ p["up"] + p["up_bias"])
    return x + hidden @ p["down"] + p["down_bias"]


def whole(p: Params, tokens: jax.Array) -> tuple[jax.Array, list[tuple[jax.Array, jax.Array]]]:
    """Logits `[n, s, V]` of sequences, and each layer's keys and values."""
    size = tokens.shape[1]
    x, caches = p["tokens"][tokens] + p["places"][:size], []
    for layer in p["layers"]:
        q, k, v = jnp.split(normed(layer["norm1"], x) @ layer["qkv"] + layer["qkv_bias"], 3, axis=-1)
        caches.append((k, v))
        x = x + attend(q, k, v, jnp.tril(jnp.ones((size, size), bool))) @ layer["out"] + layer["out_bias"]
        x = perceptron(layer, x)
    return normed(p["norm"], x) @ p["last"], caches


def one(p: Params, token: jax.Array, place: jax.Array, caches: Any) -> tuple[jax.Array, Any]:
    """Logits `[n, V]` of the token at a place, with keys and values."""
    x, after = (p["tokens"][token] + p["places"][place])[:, None], []
    for layer, (keys, values) in zip(p["layers"], caches, strict=True):
        q, k, v = jnp.split(normed(layer["norm1"], x) @ layer["qkv"] + layer["qkv_bias"], 3, axis=-1)
        keys = jax.lax.dynamic_update_slice_in_dim(keys, k, place, 1)
        values = jax.lax.dynamic_update_slice_in_dim(values, v, place, 1)
        after.append((keys, values))
        seen = (jnp.arange(keys.shape[1]) <= place)[None]
        x = x + attend(q, keys, values, seen) @ layer["out"] + layer["out_bias"]
        x = perceptron(layer, x)
    return (normed(p["norm"], x) @ p["last"])[:, 0], after


def generate(p: Params, prompts: jax.Array, key: jax.Array | None) -> tuple[jax.Array, jax.Array]:
    """Completions `[n, L]`, sampled or (without a key) greedy, and their tokens' log-probabilities."""
    room = ((0, 0), (0, LONGEST), (0, 0))
    caches = [tuple(jnp.pad(x, room) for x in pair) for pair in whole(p, prompts[:, :-1])[1]]

    def step(state: Any, place: jax.Array) -> tuple[Any, Any]:
        token, caches, over = state
        logits, caches = one(p, token, place, caches)
        greedy = jnp.argmax(logits, -1)
        chosen = greedy if key is None else jax.random.categorical(jax.random.fold_in(key, place), logits)
        chosen = jnp.where(over, 0, chosen)
        log_prob = jnp.take_along_axis(jax.nn.log_softmax(logits), chosen[:, None], -1)[:, 0]
        return (chosen, caches, over | (chosen == END)), (chosen, log_prob)

    start = (prompts[:, -1], caches, jnp.zeros(len(prompts), bool))
    _, (tokens, log_probs) = jax.lax.scan(step, start, PROMPT - 1 + jnp.arange(LONGEST))
    return tokens.T, log_probs.T


def scored(p: Params, prompts: jax.Array, completions: jax.Array) -> jax.Array:
    """Log-probabilities `[n, L]` of completions."""
    logits = whole(p, jnp.concatenate([prompts, completions[:, :-1]], 1))[0][:, PROMPT - 1 :]
    return jnp.take_along_axis(jax.nn.log_softmax(logits), completions[..., None], -1)[..., 0]


def counted(completions: jax.Array) -> jax.Array:
    """Tokens that are trained on: up to the end and with it."""
    return jnp.cumsum(completions == END, 1) - (completions == END) == 0


def prompts_of(key: jax.Array, number: int, held_out: bool) -> jax.Array:
    keys = jax.random.split(key, number)
    return jax.vmap(lambda key: TASK.draw(key, held_out))(keys).astype(jnp.int32)


OPTIMIZER = optax.chain(optax.clip_by_global_norm(NORM), optax.adam(RATE))


def update(state: Any, key: jax.Array) -> tuple[Any, jax.Array]:
    """One update of GRPO on fresh completions; the share of right ones."""
    p, momentum = state
    drawing, sampling = jax.random.split(key)
    prompts = jnp.repeat(prompts_of(drawing, GROUPS, False), GROUP, 0)
    completions, before = generate(p, prompts, sampling)
    rewards = jax.vmap(TASK.verify)(prompts, completions).astype(jnp.float32)
    groups = rewards.reshape(GROUPS, GROUP)
    advantages = (groups - groups.mean(1, keepdims=True)) / (groups.std(1, keepdims=True) + 1e-6)
    advantages, mask = advantages.reshape(-1, 1), counted(completions)

    def loss(p: Params) -> jax.Array:
        ratio = jnp.exp(scored(p, prompts, completions) - before)
        clipped = jnp.clip(ratio, 1 - CLIP, 1 + CLIP)
        terms = jnp.minimum(ratio * advantages, clipped * advantages)
        return -jnp.sum(jnp.where(mask, terms, 0)) / mask.sum()

    updates, momentum = OPTIMIZER.update(jax.grad(loss)(p), momentum, p)
    return (optax.apply_updates(p, updates), momentum), rewards.mean()


def warm(p: Params, key: jax.Array) -> Params:
    """Parameters that have imitated demonstrations."""
    optimizer = optax.adam(WARM_RATE)

    def step(state: Any, key: jax.Array) -> tuple[Any, None]:
        p, momentum = state
        prompts, completions = jax.vmap(lambda key: TASK.demonstration(key, ERRORS))(jax.random.split(key, WARM_BATCH))
        prompts, completions = prompts.astype(jnp.int32), completions.astype(jnp.int32)
        mask = counted(completions)

        def loss(p: Params) -> jax.Array:
            return -jnp.sum(jnp.where(mask, scored(p, prompts, completions), 0)) / mask.sum()

        updates, momentum = optimizer.update(jax.grad(loss)(p), momentum)
        return (optax.apply_updates(p, updates), momentum), None

    return jax.lax.scan(step, (p, optimizer.init(p)), jax.random.split(key, WARM))[0][0]


@partial(jax.jit, donate_argnums=0)
def chunk(state: Any, keys: jax.Array) -> tuple[Any, jax.Array]:
    """Updates, one for each key."""
    return jax.lax.scan(update, state, keys)


@jax.jit
def held_out(p: Params, key: jax.Array) -> jax.Array:
    """Share of right greedy completions of held-out prompts."""
    prompts = prompts_of(key, HELD_OUT, True)
    return jax.vmap(TASK.verify)(prompts, generate(p, prompts, None)[0]).mean()


def run(job: str, seed: int, goal: Goal | None = None) -> Figures:
    """All updates after the warm start."""
    watch = Stopwatch()
    keys = jax.random.split(jax.random.key(seed), 4)
    p = jax.jit(warm)(init(keys[0]), keys[1])
    state = (p, OPTIMIZER.init(p))
    steps = jax.random.split(keys[2], UPDATES).reshape(-1, CHUNK)
    with watch.compiling():
        compiled = chunk.lower(state, steps[0]).compile()
    before = float(held_out(p, keys[3]))
    shares = []
    watch.start()
    for own in steps:
        state, share = compiled(state, own)
        shares.append(share)
    shares = jax.device_get(shares)
    watch.stop()
    figures = watch.figures(UPDATES * GROUPS * GROUP * LONGEST, float(held_out(state[0], keys[3])))
    return figures | {
        "return_before": before,
        "sampled_before": float(shares[0][0]),
        "sampled": float(shares[-1].mean()),
    }


if __name__ == "__main__":
    main("plain loop", jax.__version__, ["tokens_addition"], run)
