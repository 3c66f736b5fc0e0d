"""Without staleness every rule, weight, admission policy and correction is the synchronous trainer, to the bit.

The engine is a function of its plan, so plans that are equal are runs that are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scenarios import GRADIENTS, HEAVY, INSTANT, advance, examples, simulate
from settings import delay
from training import tiny

from stellaris_jax import Trainer
from stellaris_jax.base.registry import register
from stellaris_jax.engine.corrections import EffectiveSampleSize
from stellaris_jax.timeline import Round

WEIGHTS = st.fixed_dictionaries(
    {
        "weights": st.sampled_from([name for name in register.weight if name != "artifact"]),
        "root": st.integers(1, 5),
        "exponent": st.floats(0.0, 3.0),
        "slope": st.floats(0.0, 20.0),
        "knee": st.integers(0, 5),
        "rate": st.floats(0.0, 3.0),
    }
)
ADMISSION = st.fixed_dictionaries(
    {
        "admission": st.sampled_from(list(register.admission)),
        "bound": st.integers(0, 4),
        "eta": st.integers(0, 4),
        "window": st.integers(0, 4),
    }
)


def planned(records: list[Round]) -> list[Any]:
    """The engine's input of these rounds: gradients by group, with their versions and weights."""
    return [
        [
            (g.fragment, g.minibatch, g.version, weight, g.staleness, g.peers)
            for g, weight in zip(group.gradients, group.weights, strict=True)
        ]
        for record in records
        for group in record.groups
    ]


@examples
@given(
    rule=st.sampled_from([name for name in register.rule if name not in ("central", "artifact")]),
    settings=st.tuples(WEIGHTS, ADMISSION, st.floats(0.05, 1.0), st.integers(0, 4)),
    actors=st.sampled_from(["barrier", "pipelined"]),
    failure=st.sampled_from([0.0, 0.3]),
)
def test_one_learner_is_sequential(
    rule: str, settings: tuple[dict[str, Any], dict[str, Any], float, int], actors: str, failure: float
) -> None:
    weights, admission, decay, s = settings
    own = {**weights, **admission, "decay": decay, "s": s, "c": 1}
    delays: dict[str, Any] = {"learner": HEAVY, "aggregate": INSTANT, "failure": failure, "actors": actors}
    records = advance(simulate(rule, learners=1, **own, **delays), 5)
    assert planned(records) == planned(advance(simulate("central", **delays), 5))


@examples
@given(
    rule=st.sampled_from(["async", "softsync", "stellaris"]),
    learners=st.sampled_from([2, 4, 8]),
    weights=WEIGHTS,
    patient=st.booleans(),
    aggregate=st.sampled_from([INSTANT, delay("constant", 0.7)]),
)
def test_all_learners_on_one_version_are_synchronous(
    rule: str, learners: int, weights: dict[str, Any], patient: bool, aggregate: Any
) -> None:
    """Next versions that wait for everybody in flight are all-reduce; so is a capacity of as many gradients as softsync
    makes a version of."""
    policy = {"admission": "waiting", "bound": 0} if patient else {"admission": "capacity", "eta": 0, "batch": learners}
    rule = rule if patient else "softsync"
    same: dict[str, Any] = {"learners": learners, "learner": delay("constant", 0.3), "aggregate": aggregate}
    records = advance(simulate(rule, **policy, **weights, c=learners, **same), 4)
    expected = advance(simulate("allreduce", weights="constant", **same), 4)
    assert planned(records) == planned(expected)
    assert {len(group.gradients) for record in records for group in record.groups} == {learners}
    assert GRADIENTS % learners == 0


@pytest.mark.usefixtures("shared_programs")
def test_to_the_bit() -> None:
    """Parameters of one asynchronous learner with every correction at once equal those of a central one."""
    names = [name for name, kind in register.correction.items() if kind is not EffectiveSampleSize]
    alone = [
        "system.learners=1",
        "delays.aggregate.kind=constant",
        "delays.aggregate.seconds=0",
        "system.truncation=none",
    ]
    central = Trainer(tiny("system=central", *alone))
    everything = [f"system.corrections=[{','.join(names)}]", "system.weights=hinge", "system.admission=in_order"]
    other = Trainer(tiny("system=stellaris", *alone, *everything))
    central.run(4)
    other.run(4)
    np.testing.assert_array_equal(central.state.params, other.state.params)
