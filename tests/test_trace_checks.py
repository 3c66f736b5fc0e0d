"""Recorded data of independent actors that do not fit one another: a replay refuses them in a sentence."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import live_runs
import pytest
from live_runs import config_of, live

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.execute.recording import Outline
from stellaris_jax.timeline import trace
from stellaris_jax.timeline.trace import Header, Trace

pytestmark = pytest.mark.usefixtures("shared_programs")

Data = dict[str, Any]
ROUND = 3
"""Index of the round that is edited."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> tuple[Header, list[Data]]:
    """Header and rounds, as JSON data, of a live run whose fragments have four segments."""
    actors = ("system.actors=independent", "system.actor_shards=2", "live.actors=0", "system.sync_steps=4")
    config = config_of("system=async", *actors, "system.data_admission=evict_stalest", "total_steps=640")
    trainer = live(config)
    trainer.run()
    directory = live_runs.left(trainer, config, tmp_path_factory.mktemp("live"))
    header, rounds = trace.read(directory / trace.NAME)
    assert Outline.of(Trace(header, rounds)).rows > 0
    return header, [json.loads(one.line()) for one in rounds]


def segments(edit: Callable[[list[Any]], Any]) -> Callable[[Data], None]:
    """Edit of a round's first segment: shard, number, part, row, version."""
    return lambda data: edit(data["segments"][0])


def fragment(name: str, value: Any) -> Callable[[Data], None]:
    """Edit of the first fragment of a round's first batch."""
    return lambda data: data["batches"][0]["fragments"][0].update({name: value(data) if callable(value) else value})


def gradient(name: str, change: int) -> Callable[[Data], None]:
    """Edit of a round's first aggregated gradient."""

    def edit(data: Data) -> None:
        one = data["groups"][0]["gradients"][0]
        one[name] = max(0, one[name] + change)

    return edit


def set_item(place: int, value: Any) -> Callable[[list[Any]], None]:
    return lambda one: one.__setitem__(place, value)


def repeated(data: Data) -> None:
    """A gradient is of the same minibatch as another one."""
    first, second = (group["gradients"][0] for group in data["groups"][:2])
    second.update(fragment=first["fragment"], minibatch=first["minibatch"])


EDITS: dict[str, tuple[Callable[[Data], Any], str]] = {
    "version of the future": (segments(set_item(4, 10**6)), "a segment is of a version that was not there yet"),
    "another version": (
        segments(lambda one: set_item(4, one[4] - 1)(one)),
        "a fragment has other versions than its segments",
    ),
    "another row": (segments(set_item(3, 99)), "a segment is in a row that no fragment has"),
    "one row for all": (lambda data: [set_item(3, 0)(one) for one in data["segments"]], "same row"),
    "another part": (segments(set_item(2, 9)), "a segment is not the next one of its fragment"),
    "another number": (segments(set_item(1, 77)), "a segment is of a fragment that its shard does not roll"),
    "fragment's shard": (
        fragment("shard", lambda data: 1 - data["batches"][0]["fragments"][0]["shard"]),
        "a fragment leaves the data queue before it is rolled",
    ),
    "fragment's versions": (fragment("versions", [0, 0, 0, 0]), "a fragment has other versions than its segments"),
    "fragment's row": (fragment("row", 50), "a fragment is in another row than its segments"),
    "fragment's age": (fragment("batch", 99), "a fragment was begun after more batches than there are"),
    "batch's index": (lambda data: data["batches"][0].update(index=77), "a batch is not the next one"),
    "batch's version": (lambda data: data["batches"][0].update(clock=0), "a batch is not of the newest version"),
    "data lag": (lambda data: data.update(data_lag_counts=[10**6]), "data_lag_counts is not as its gradients"),
    "no order": (lambda data: data.pop("order"), "order is missing"),
    "neither order nor segments": (lambda data: [data.pop(key) for key in ("order", "segments")], "order is missing"),
    "group's clock": (lambda data: data["groups"][-1].update(clock=10**6), "a group does not follow the one before"),
    "gradient's version": (gradient("version", -1), "a gradient (has another staleness|is of an older version)"),
    "gradient's staleness": (gradient("staleness", 1), "a gradient has another staleness"),
    "gradient's batch": (gradient("fragment", 50), "a gradient is of a batch that is complete or not formed"),
    "gradient of an old batch": (gradient("fragment", -ROUND), "a gradient is of a batch that is complete"),
    "gradient's minibatch": (repeated, "a minibatch is used twice"),
    "unknown minibatch": (gradient("minibatch", 10**3), "it ends before all minibatches of its batch are used"),
    "behaviour version": (lambda data: data.update(behaviour_version=10**6), "behaviour_version is another one"),
    "arrived": (lambda data: data.update(arrived=10**6), "arrived is another version"),
    "waiting": (lambda data: data.update(waiting=data["waiting"] + 1), "waiting is not the number of fragments"),
    "updates": (lambda data: data["usage"].update(updates=0), "usage.updates is not the number of groups"),
}
"""Edits of a round, and a part of the sentence that refuses them."""


def refusal(header: Header, rounds: list[Data], path: Path) -> str:
    """Sentence that refuses a trace of these rounds."""
    lines = [json.dumps(header._asdict()), *map(json.dumps, rounds)]
    path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode()))
    with pytest.raises(ConfigError) as error:
        Outline.of(trace.read(path))
    return str(error.value)


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_round_is_refused(name: str, recorded: tuple[Header, list[Data]], tmp_path: Path) -> None:
    """The sentence names the edited round or, where rounds are each sound, the first that does not follow from it."""
    header, rounds = recorded
    edit, expected = EDITS[name]
    edited = json.loads(json.dumps(rounds))
    edit(edited[ROUND])
    assert edited != rounds
    message = refusal(header, edited, tmp_path / trace.NAME)
    assert f"round {ROUND + 1} is not as a run writes it: " in message and message.endswith("; put the file back.")
    assert re.search(expected, message)


def test_data_after_a_round_without_any_are_refused(recorded: tuple[Header, list[Data]], tmp_path: Path) -> None:
    header, rounds = recorded
    first = {**rounds[0], "batches": [], "dropped_fragments": []}
    del first["order"], first["segments"]
    message = refusal(header, [first, *rounds[1:]], tmp_path / trace.NAME)
    assert "it has data of independent actors, and the first round has no batch" in message


def test_a_round_without_its_batch_is_refused(recorded: tuple[Header, list[Data]], tmp_path: Path) -> None:
    header, rounds = recorded
    bare = {**rounds[ROUND], "batches": [], "dropped_fragments": [], "groups": [], "dropped": []}
    del bare["order"], bare["segments"]
    message = refusal(header, [*rounds[:ROUND], bare, *rounds[ROUND + 1 :]], tmp_path / trace.NAME)
    assert "not as a run writes it" in message
