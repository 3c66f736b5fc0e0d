"""Timelines: asynchronous training is simulated first (`Timeline`), laid out as waves (`build_plan`), then executed."""

from stellaris_jax.timeline.plan import Invocation, MinibatchLayout, Peers, Plan, build_plan, minibatch_order
from stellaris_jax.timeline.records import Gradient, Group, Round, Usage
from stellaris_jax.timeline.rules import Rule
from stellaris_jax.timeline.shapes import PlanShape
from stellaris_jax.timeline.simulate import Timeline

__all__ = [
    "Gradient",
    "Group",
    "Invocation",
    "MinibatchLayout",
    "Peers",
    "Plan",
    "PlanShape",
    "Round",
    "Rule",
    "Timeline",
    "Usage",
    "build_plan",
    "minibatch_order",
]
