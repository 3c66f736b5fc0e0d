"""V-trace: value targets and advantages of a policy from the steps of another (Espeholt et al. 2018, Section 4.1)."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from stellaris_jax.agent import Number
from stellaris_jax.agent.losses.common import AdvantageInputs, LossInputs, Steps, importance_ratio
from stellaris_jax.agent.losses.gae import decayed, linear_recurrence


def vtrace(
    log_ratio: jax.Array,
    value: jax.Array,
    steps: Steps,
    gamma: Number,
    trace_lambda: Number,
    rho_bar: Number,
    c_bar: Number,
    valid: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array]:
    """V-trace's value targets vs and advantages q - V, all arrays `[T, n]` (Eq. 1, Remark 2, lambda on the traces).

    vs_t - V_t = rho_t delta_t + gamma lambda c_t (vs_{t+1} - V_{t+1}), where rho = min(rho_bar, R), c = min(c_bar, R);
    q_t = r_t + gamma (lambda vs_{t+1} + (1 - lambda) V_{t+1}). The advantage carries no importance weight: the paper's
    policy gradient multiplies it by rho.

    Termination cuts the bootstrap, and truncation keeps it. Both cut the trace. An invalid step cuts the trace, too;
    its target is its value, and its advantage is 0.

    On policy (R = 1) the targets are returns. Actions that the policy has come to prefer (R = 2) get the same weight as
    on policy; actions that it has come to avoid (R = 1/2) get less:

    >>> ones, zeros, never = jnp.ones((3, 1)), jnp.zeros((3, 1)), jnp.zeros((3, 1), bool)
    >>> steps = Steps(reward=ones, next_value=zeros, terminated=never, truncated=never)
    >>> for ratio in (1.0, 2.0, 0.5):
    ...     options = {"gamma": 0.5, "trace_lambda": 1.0, "rho_bar": 1.0, "c_bar": 1.0}
    ...     vtrace(jnp.log(ratio * ones), zeros, steps, **options)[0][:, 0].tolist()
    [1.75, 1.5, 1.0]
    [1.75, 1.5, 1.0]
    [0.65625, 0.625, 0.5]

    Args:
      log_ratio: log R = log(pi / mu).
      value: values of the observations.
      steps: rewards, ends and values of the next observations before any reset.
      gamma: discount of a step.
      trace_lambda: decay of longer sums.
      rho_bar: upper bound of the ratio that weights an error.
      c_bar: upper bound of the ratio in the trace.
      valid: whether to learn from a step; `None` if all steps are valid.

    Returns:
      (value targets, advantages).
    """
    ratio = importance_ratio(log_ratio)
    error = steps.reward + jnp.where(steps.terminated, 0.0, gamma * steps.next_value) - value
    ends = steps.terminated | steps.truncated
    if valid is not None:
        error = jnp.where(valid, error, 0.0)
        ends |= ~valid
    discount = jnp.where(ends, 0.0, gamma * trace_lambda)
    decay = discount * jnp.minimum(ratio, c_bar)
    zeros = jnp.zeros_like(value[0])
    excess = linear_recurrence(decay, jnp.minimum(ratio, rho_bar) * error, zeros, reverse=True)
    return value + excess, error + decayed(discount, jnp.concatenate([excess[1:], zeros[None]]))


def learned_steps(log_ratio: jax.Array, inputs: LossInputs) -> AdvantageInputs:
    """Steps `[T, n]` of a minibatch of sequences, with a learner's log-ratios `[B]` and values; without gradient.

    Values come from the learner's critic. The learner does not evaluate the observation after the last step and the
    final ones of truncated episodes; these keep their values from collection time. This saves a forward pass per
    minibatch, at the cost of values as old as the data.
    """
    batch, hyper = inputs.batch, inputs.hyper
    assert batch.steps is not None, "the minibatch holds no sequences"
    columns = (log_ratio, inputs.value, batch.steps, batch.valid)
    columns = jax.tree.map(lambda x: jax.lax.stop_gradient(x).reshape(inputs.steps, -1), columns)
    log_ratio, value, steps, valid = columns
    last = jnp.arange(inputs.steps)[:, None] == inputs.steps - 1
    next_value = jnp.where(steps.truncated | last, steps.next_value, jnp.roll(value, -1, axis=0))
    return AdvantageInputs(
        **steps._replace(next_value=next_value)._asdict(),
        value=value,
        valid=valid,
        log_ratio=log_ratio,
        gamma=hyper.gamma,
        gae_lambda=hyper.gae_lambda,
    )


def minibatch_vtrace(
    log_ratio: jax.Array, inputs: LossInputs, rho_bar: Number, c_bar: Number
) -> tuple[jax.Array, jax.Array]:
    """`vtrace` for a minibatch of sequences, all arrays `[B]` = `[T, n]` flattened, without gradient."""
    steps = learned_steps(log_ratio, inputs)
    assert steps.log_ratio is not None, "learners have log-ratios"
    data = Steps(steps.reward, steps.next_value, steps.terminated, steps.truncated)
    numbers = (steps.gamma, steps.gae_lambda, rho_bar, c_bar)
    target, advantage = vtrace(steps.log_ratio, steps.value, data, *numbers, steps.valid)
    return target.reshape(-1), advantage.reshape(-1)
