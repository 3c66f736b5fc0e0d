"""Faults of independent actors that were mended: records of nothing, start-up, refusals, answers of plug-ins."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from live_runs import Chaos, config_of, functions_of, live
from settings import complaint
from training import OPTION, again, steps, tiny
from uneven import Uneven

from stellaris_jax import Admission, Config, DataAdmission, Trainer, load_config, register
from stellaris_jax.base.errors import ConfigError, RunError
from stellaris_jax.config.validation import check_values
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.pool import Call, Done
from stellaris_jax.runs.checkpoint import Checkpoints
from stellaris_jax.timeline import Gradient, Timeline, free_actors
from stellaris_jax.timeline.data_admission import DataView
from stellaris_jax.timeline.records import Fragment
from stellaris_jax.timeline.view import View

pytestmark = pytest.mark.usefixtures("shared_programs")

FREE = ("system.actors=independent", "delays=pareto", "system.sync_steps=4", "engine.chunk_rounds=3")
OF_GRADIENTS = (
    "policy_loss", "value_loss", "entropy", "kl", "grad_norm", "update_norm", "kl_coefficient", "ess", "chi2",
    "data_lag", "data_lag_max", "data_lag_seconds",
)  # fmt: skip
"""Records that a round has of the gradients that it aggregates."""


# Records of nothing ---------------------------------------------------------------------------------------------------


def test_a_round_that_aggregates_nothing_has_no_losses() -> None:
    """One group may end two batches: then the later round has nothing to aggregate."""
    config = tiny(
        steps(8), *FREE, "system=async", "system.rule_options.coalesce=true", "algorithm.epochs=1", "system.learners=2",
        "algorithm.minibatches=1", "system.batches_in_flight=4", "delays.aggregate.seconds=20", "delays.failure=0",
    )  # fmt: skip
    records: list[dict[str, Any]] = Trainer(config).run()
    nothing = [record for record in records if not sum(record["staleness_counts"])]
    assert 0 < len(nothing) < len(records)
    for record in records:
        empty = record in nothing
        assert [name for name in OF_GRADIENTS if (record[name] is None) is not empty] == []
        assert record["learning_rate"] > 0.0


# Configurations -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "override",
    ["system.batches_in_flight=3", "system.data_queue=8", "system.publish_lag=1", "delays.actor_failure=0.1"],
)
@pytest.mark.parametrize("actors", ["barrier", "pipelined"])
def test_keys_of_independent_actors_are_refused_elsewhere(actors: str, override: str) -> None:
    key, _, _ = override.partition("=")
    message = complaint(f"system.actors={actors}", override)
    assert message.startswith(f"{override} is for system.actors=independent; with system.actors={actors} give {key}=")


@pytest.mark.parametrize("preset", ["areal", "one_step", "pipeline", "sample_factory"])
def test_one_sentence_says_how_a_preset_has_other_actors(preset: str) -> None:
    message = complaint(f"system={preset}", "system.actors=barrier")
    given = re.findall(r"[a-z_.]+=[a-z0-9_.]+(?=[ ,]|\.$)", message.partition(" give ")[2])
    assert given
    config = load_config([f"system={preset}", "system.actors=barrier", *given])
    assert config.system.actors == "barrier" and config.system.data_admission == "fifo"


@pytest.mark.parametrize("executor", ["live", "replay"])
def test_parameter_functions_and_episodes_of_simulations_alone(executor: str) -> None:
    base = Config().replace({"executor": executor, "trace": "runs/any" if executor == "replay" else ""})
    sentence = f"platform.parameter_shards=2 is not possible with executor={executor}, which has one parameter function"
    with pytest.raises(ConfigError, match=sentence):
        check_values(base.replace({"platform.parameter_shards": 2}))
    durations = {"live": "measured", "replay": "those of the trace"}[executor]
    sentence = f"executor={executor}, whose durations are {durations}; delays.by=steps is"
    with pytest.raises(ConfigError, match=sentence):
        check_values(base.replace({"system.actors": "independent", "delays.by": "episodes"}))


# Runs that could not go on --------------------------------------------------------------------------------------------


def test_actors_that_take_no_time_end_the_run_at_once() -> None:
    config = load_config(
        ["system.actors=independent", "system.data_admission=evict_stalest", "delays.actor.kind=constant",
         "delays.actor.seconds=0", "platform.cache=0"]
    )  # fmt: skip
    with pytest.raises(RunError, match=r"Actors have begun (\d+) fragments .* delays\.actor is too short") as caught:
        for _ in range(3):
            Timeline.of(config, 0).next_round()
    (begun,) = re.findall(r"begun (\d+) fragments", str(caught.value))
    assert int(begun) <= (free_actors.MOST_AT_ONCE + 2) * config.actor_shards


def test_a_long_queue_may_fill_at_once() -> None:
    config = load_config(
        ["system.actors=independent", "system.data_admission=capacity", "system.data_admission_options.eta=1500",
         "system.actor_shards=2", "delays.actor.kind=constant", "delays.actor.seconds=0", "platform.cache=0"]
    )  # fmt: skip
    assert Timeline.of(config, 0).next_round().waiting > 2 * 1490


class Held(Admission):
    """Admission that never admits a minibatch, and lets no version come without it."""

    def admits(self, gradient: Gradient, view: View) -> bool:
        return gradient.minibatch != 1

    def largest_staleness(self) -> int:
        return 2


class Closed(Admission):
    """Admission that admits nothing."""

    def admits(self, gradient: Gradient, view: View) -> bool:
        return False


HELD = {
    Held: r"system\.admission=mine lets none of \d+ queued gradients be aggregated at .* others too stale, which Held",
    Closed: r"system\.admission=mine holds \d+ gradients back at .* Closed\.admits must let one join",
}


@pytest.fixture
def admission(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Sentence on a plug-in `mine`, which is registered as long as a test lasts."""
    list(register.admission)  # ours are there
    monkeypatch.setitem(vars(register.admission)["_entries"], "mine", request.param)
    return HELD[request.param]


@pytest.mark.parametrize("admission", HELD, indirect=True)
@pytest.mark.parametrize("actors", ["barrier", "pipelined", "independent"])
def test_an_admission_that_holds_gradients_back_for_ever_is_named(actors: str, admission: str) -> None:
    timeline = Timeline.of(load_config(["system=async", f"system.actors={actors}", "system.admission=mine"]), 0)
    with pytest.raises(RunError, match=admission):
        for _ in range(3):
            timeline.next_round()


@pytest.mark.parametrize("admission", [Held], indirect=True)
@pytest.mark.parametrize("actors", ["barrier", "independent"])
def test_so_it_is_in_a_live_run(actors: str, admission: str) -> None:
    trainer = live(config_of("system=async", f"system.actors={actors}", "live.actors=0", "system.admission=mine"))
    with pytest.raises(RunError, match=admission):
        trainer.run()


# Answers of data admissions -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("answer", [None, 3, "all", [1], [None], {"a": 1}])
@pytest.mark.parametrize("method", ["selects", "evicts"])
def test_a_wrong_answer_is_one_sentence(method: str, answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    odd = type("Odd", (DataAdmission,), {method: lambda self, view: answer})
    list(register.data_admission)
    monkeypatch.setitem(vars(register.data_admission)["_entries"], "odd", odd)
    timeline = Timeline.of(load_config(["system.actors=independent", "system.data_admission=odd"]), 0)
    start = rf"system\.data_admission=odd: Odd\.{method} must return .*different fragments of view\.waiting.*"
    with pytest.raises(RunError, match=start + re.escape(f"not {answer!r}.")):
        timeline.next_round()


def test_a_data_admission_cannot_change_what_it_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[str] = []
    seen: list[int] = []

    class Meddling(DataAdmission):
        def selects(self, view: DataView) -> Sequence[Fragment]:
            for name, change in {
                "waiting": lambda view: view.waiting.clear(),
                "rolling": lambda view: view.rolling.clear(),
                "begun": lambda view: view.begun.append(0),
            }.items():
                seen.append(len(getattr(view, name)))
                with suppress(AttributeError):
                    change(view)
                    changed.append(name)
            return super().selects(view)

    timeline = Timeline.of(load_config(["system.actors=independent"]), 0)
    assert timeline.free is not None
    monkeypatch.setattr(timeline.free.queue, "admission", Meddling())
    for _ in range(3):
        timeline.next_round()
    assert seen and not changed


# Time of learners -----------------------------------------------------------------------------------------------------


class Timed(Chaos):
    """Pool whose invocations have taken as long as they were under way, as those of processes do."""

    def __init__(self, functions: Functions):
        super().__init__(functions)
        self.submitted: dict[int, float] = {}

    def submit(self, call: Call, *arguments: Any) -> None:
        self.submitted[call.stamp] = time.monotonic()
        super().submit(call, *arguments)

    def wait(self) -> list[Done]:
        return [done._replace(elapsed=time.monotonic() - self.submitted[done.call.stamp]) for done in super().wait()]


def test_time_between_rounds_counts_for_no_learner() -> None:
    """Policies are evaluated and saved then, while learners of pipelined actors are under way."""
    config = config_of("system.actors=pipelined", "live.actors=1")
    trainer = Trainer(config, make_pool=lambda config, actors: Timed(functions_of(config)))
    trainer.compile()
    paused = 0.0
    while not trainer.finished:
        trainer.step()
        time.sleep(1.0)
        paused += bool(trainer.executor.conductor.state()["learning"])
    assert paused > 0, "no learner was under way between rounds"
    (usage,) = trainer.usages
    assert usage.learner_busy + usage.learner_startup <= config.system.learners * usage.seconds


# Records of fragments that end with their episodes --------------------------------------------------------------------


def test_valid_share_is_that_of_the_samples_learned_from() -> None:
    """Fresh data: each round forms one batch, which its buffer holds at the end."""
    settings = (
        steps(4), *FREE, "system.actor_shards=4", "delays.by=episodes", f"env.name={Uneven.name}", "env.kwargs={}",
        "system.data_admission=capacity", f"{OPTION}.eta=0",
    )  # fmt: skip
    trainer = Trainer(tiny(*settings))
    shares = []
    for index in range(trainer.total_rounds):
        (record,) = trainer.step()
        valid = np.asarray(trainer.state.loader.fragments.valid).reshape(trainer.spec.shape.fragments.length, -1)
        shares.append(valid[trainer.spec.shape.fragments.slot(index)].mean())
        assert record["valid_share"] == pytest.approx(shares[-1])
    assert min(shares) > 0.0 and max(shares) < 1.0


def test_samples_of_waiting_fragments_survive_a_checkpoint(tmp_path: Path) -> None:
    settings = (
        steps(5), *FREE, "system.actor_shards=4", "delays.by=episodes", f"env.name={Uneven.name}", "env.kwargs={}",
        "system.data_admission=capacity", f"{OPTION}.eta=3",
    )  # fmt: skip
    whole = Trainer(tiny(*settings))
    expected = [record["valid_share"] for record in whole.run()]
    first, second = again(whole), again(whole)
    checkpoints = Checkpoints(tmp_path, keep=1)
    first.run(2)
    first.save(checkpoints)
    checkpoints.wait()
    second.restore(checkpoints)
    assert [record["valid_share"] for record in second.run()] == expected[2:]
    checkpoints.close()
