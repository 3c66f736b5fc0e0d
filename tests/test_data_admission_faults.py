"""Faults of data admissions: answers of the wrong type, drops without end, queues that no machine holds."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from commands import call
from live_runs import config_of, live

from stellaris_jax import Admission, DataAdmission, Rule, load_config, register
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.timeline import Timeline, data_admission
from stellaris_jax.timeline.data_admission import BoundedData, DataView, Fixed
from stellaris_jax.timeline.records import Fragment

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ("system=async", "system.actors=independent", "system.actor_shards=4")
OPTIONS = "system.data_admission_options"
Odd = Callable[..., Config]


@pytest.fixture
def odd(monkeypatch: pytest.MonkeyPatch) -> Iterator[Odd]:
    """Function from attributes of a plug-in's data admission, `Odd`, to a configuration that names it."""

    def configuration(*overrides: str, **attributes: Any) -> Config:
        list(register.data_admission)  # ours are there
        kind = type("Odd", (DataAdmission,), attributes)
        monkeypatch.setitem(vars(register.data_admission)["_entries"], "odd", kind)
        return load_config([*FREE, *overrides, "system.data_admission=odd"])

    yield configuration


def rounds(config: Config, number: int = 3) -> list[Any]:
    timeline = Timeline.of(config, 0)
    return [timeline.next_round() for _ in range(number)]


# Queues that no machine holds -----------------------------------------------------------------------------------------

HUGE = 2**63 - 1


@pytest.mark.parametrize(
    "overrides",
    [[f"system.data_queue={HUGE}"], ["system.data_admission=ready_first", f"{OPTIONS}.eta={HUGE}"],
     ["system.data_admission=capacity", f"{OPTIONS}.eta=1000000000"], ["system.data_queue=1000000000"]],
)  # fmt: skip
def test_a_plan_may_have_a_queue_that_no_machine_holds(overrides: list[str]) -> None:
    ended = call("plan.py", *FREE, *overrides, "num_seeds=1", "--rounds", "5")
    assert ended.returncode == 0, ended.stderr


def test_a_lag_that_no_plan_reaches_is_refused() -> None:
    ended = call("plan.py", *FREE, "system.data_admission=fixed", f"{OPTIONS}.lag={HUGE}")
    assert ended.returncode == 2
    assert f"error: {OPTIONS}.lag must be in [0, 100000), not {HUGE}." in ended.stderr


def test_a_row_is_the_first_that_is_free() -> None:
    """A restored queue knows its free rows from the fragments that have one."""
    settings = (*FREE, "delays=pareto", "system.data_admission=newest", "system.data_queue=12", f"{OPTIONS}.bound=0")
    timeline = Timeline.of(load_config([*settings]), 0)
    dropped = sum(len(timeline.next_round().dropped_fragments) for _ in range(10))
    assert dropped > 0
    again = Timeline.of(load_config([*settings]), 0)
    again.restore(json.loads(json.dumps(timeline.state())))
    assert timeline.free is not None and again.free is not None
    for queue in (timeline.free.queue, again.free.queue):
        rows = {fragment.row for fragment in (*queue.waiting, *queue.rolling.values())}
        assert len(rows) == queue.outstanding <= 12 + 4 and max(rows) < 12 + 4
    assert [timeline.next_round() for _ in range(5)] == [again.next_round() for _ in range(5)]


# Drops without end ----------------------------------------------------------------------------------------------------

DROPS = {
    "evicts": {"evicts": lambda self, view: list(view.waiting)},
    "keeps": {"keeps": lambda self, age, view: False},
}
ENDLESS = r"system\.data_admission=odd has dropped \d+ fragments in a row at .*, while learners wait for a batch"


@pytest.mark.parametrize("method", DROPS)
def test_an_admission_that_drops_everything_is_named(method: str, odd: Odd) -> None:
    with pytest.raises(RunError, match=ENDLESS) as caught:
        rounds(odd(**DROPS[method]))
    assert "Odd.evicts or Odd.keeps" in str(caught.value)


@pytest.mark.parametrize("method", DROPS)
def test_so_it_is_in_a_live_run(method: str, odd: Odd, monkeypatch: pytest.MonkeyPatch) -> None:
    odd(**DROPS[method])
    monkeypatch.setattr("stellaris_jax.timeline.data_queue.MOST_DROPPED", 3)
    trainer = live(config_of(*FREE, "live.actors=0", "system.data_admission=odd"))
    with pytest.raises(RunError, match=ENDLESS):
        trainer.run()


def test_drops_while_learners_compute_are_no_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Actors may be as fast as they like."""
    monkeypatch.setattr("stellaris_jax.timeline.data_queue.MOST_DROPPED", 3)
    config = load_config([
        *FREE, "system.data_admission=evict_stalest", "delays.actor.kind=constant", "delays.actor.seconds=0.01",
        "delays.learner.seconds=60",
    ])  # fmt: skip
    assert max(len(one.dropped_fragments) for one in rounds(config)) > 100


# Answers of the wrong type --------------------------------------------------------------------------------------------

NO_TRUTH = ["no", math.nan, None, 1, [True]]


@pytest.mark.parametrize("answer", NO_TRUTH, ids=repr)
@pytest.mark.parametrize("method", ["may_begin", "keeps"])
def test_a_data_admission_decides_by_true_or_false(method: str, answer: object, odd: Odd) -> None:
    sentence = re.escape(f"Odd.{method} must return true or false, not {answer!r}.")
    with pytest.raises(RunError, match=sentence):
        rounds(odd(**{method: lambda self, first, view: answer}))


@pytest.mark.parametrize("answer", NO_TRUTH, ids=repr)
@pytest.mark.parametrize(
    ("base", "method"),
    [(Rule, "ready"), (Rule, "may_start"), (Admission, "may_start"), (Admission, "keeps"), (Admission, "admits")],
)
def test_rules_and_admissions_decide_by_true_or_false(
    base: type, method: str, answer: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind, key = (register.rule, "rule") if base is Rule else (register.admission, "admission")
    list(kind)  # ours are there
    monkeypatch.setitem(vars(kind)["_entries"], "odd", type("Odd", (base,), {method: lambda self, first, view: answer}))
    sentence = re.escape(f"Odd.{method} must return true or false, not {answer!r}.")
    with pytest.raises(RunError, match=sentence):
        rounds(load_config([f"system.{key}=odd"]))


@pytest.mark.parametrize("yes", [True, np.True_, np.array(True)], ids=repr)
def test_arrays_of_one_truth_are_accepted(yes: Any, odd: Odd) -> None:
    plain = rounds(load_config([*FREE]))
    methods = ("may_begin", "keeps")
    assert rounds(odd(**{method: lambda self, first, view: yes for method in methods})) == plain


@pytest.mark.parametrize("blocks", ["no", None, 1], ids=repr)
def test_blocks_is_true_or_false(blocks: object, odd: Odd) -> None:
    with pytest.raises(ConfigError, match=re.escape(f"Odd.blocks must be true or false, not {blocks!r}.")):
        odd(blocks=blocks)


@pytest.mark.parametrize("gated", ["no", None, 1], ids=repr)
def test_gated_is_true_or_false(gated: object, monkeypatch: pytest.MonkeyPatch) -> None:
    list(register.rule)  # ours are there
    monkeypatch.setitem(vars(register.rule)["_entries"], "odd", type("Odd", (Rule,), {"gated": gated}))
    with pytest.raises(RunError, match=re.escape(f"Odd.gated must be true or false, not {gated!r}.")):
        rounds(load_config(["system.rule=odd"]))


@pytest.mark.parametrize("bound", ["no", math.nan, 1.5, -1, True], ids=repr)
def test_a_largest_staleness_is_a_count(bound: object, monkeypatch: pytest.MonkeyPatch) -> None:
    list(register.admission)  # ours are there
    odd = type("Odd", (Admission,), {"largest_staleness": lambda self: bound})
    monkeypatch.setitem(vars(register.admission)["_entries"], "odd", odd)
    sentence = re.escape(f"Odd.largest_staleness must return None or an integer of at least 0, not {bound!r}.")
    with pytest.raises(RunError, match=sentence):
        rounds(load_config(["system.admission=odd"]))


@pytest.mark.parametrize("length", [math.nan, math.inf, 1.5, "x", None, -1, 0, True], ids=repr)
def test_a_queue_is_some_batches_long(length: object, odd: Odd) -> None:
    sentence = re.escape(f"Odd.queued_batches must be an integer of at least 1, not {length!r}.")
    with pytest.raises(ConfigError, match=sentence):
        odd(queued_batches=length)


def test_a_queue_of_more_batches_than_64_bits_count_is_refused_for_its_memory(odd: Odd) -> None:
    with pytest.raises(ConfigError, match="fragments of independent actors"):
        odd(queued_batches=10**30)


# Admissions that never drop -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "options"), [(Fixed, {"lag": 40}), (BoundedData, {"bound": 40, "by": "wait"}), (DataAdmission, {})]
)
def test_an_admission_that_never_drops_is_not_asked(
    kind: type[DataAdmission], options: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The time of a plan would be more than linear in its lag."""
    asked: list[int] = []

    def ages(fragment: Fragment, view: DataView) -> int:
        asked.append(fragment.order)
        return view.formed - fragment.batch

    monkeypatch.setattr(data_admission, "age", ages)
    name = next(name for name, thing in register.data_admission.items() if thing is kind)
    given: Sequence[str] = [f"{OPTIONS}.{option}={value}" for option, value in options.items()]
    rounds(load_config([*FREE, f"system.data_admission={name}", *given]))
    assert len(asked) < 400
