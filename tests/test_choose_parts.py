"""Parts of a choice: levels and rankings of rungs, verdicts on planted results, dominance, spaces."""

from __future__ import annotations

import math
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import yaml
from commands import REPOSITORY
from hypothesis import given
from hypothesis import strategies as st

from stellaris_jax import load_config
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.schema import LAST_SEED
from stellaris_jax.many.choose.arms import (
    BASELINES,
    MOST_DURATIONS,
    Space,
    one_learner,
    one_learner_overrides,
    rates,
    reduced,
    scaled,
)
from stellaris_jax.many.choose.building import candidates, refuse
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.many.choose.files import FRESH, Options
from stellaris_jax.many.choose.objective import (
    Goal,
    Reached,
    cut,
    going_on,
    level,
    mean_curve,
    ranked,
    reached,
    rungs,
    to_target,
)
from stellaris_jax.many.choose.screening import Timing, dominated, logged, timing
from stellaris_jax.many.choose.texts import _untried
from stellaris_jax.many.choose.verdict import Judged, Scaling, differences, enough, judged, ordered
from stellaris_jax.timeline.simulate import Timeline

TIMING = Timing(1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 4.0)
SMALL = [
    "env=gymnax/cartpole",
    "env.num_envs=4",
    "algorithm.rollout_length=16",
    "network.hidden=[8]",
    "total_steps=640",
]


def curve(*points: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*points, strict=True)
    return np.array(x, float), np.array(y, float)


increasing = st.lists(st.floats(0.1, 10), min_size=1, max_size=8).map(lambda steps: np.cumsum(steps))


@given(increasing, st.data())
def test_reached_is_where_the_drawn_line_first_crosses(x: np.ndarray, data: st.DataObject) -> None:
    y = np.array(data.draw(st.lists(st.floats(-100, 100), min_size=len(x), max_size=len(x))))
    wanted = data.draw(st.floats(-120, 120))
    place = reached((x, y), wanted)
    fine = np.linspace(x[0], x[-1], 2001)
    above = np.flatnonzero(np.interp(fine, x, y) >= wanted)
    if not len(above):
        assert math.isinf(place) or y.max() - wanted < 0.2 * np.ptp(y)  # a peak between two points of the grid
    else:
        spacing = fine[1] - fine[0] if len(fine) > 1 else 0.0
        assert place <= fine[above[0]] + 1e-9 and place >= x[0] - 1e-9
        assert fine[above[0]] - place <= spacing + 1e-9 or y[np.searchsorted(x, place) - 1] <= wanted


def test_a_rung_weighs_returns_and_seconds() -> None:
    # 0 learns most per gradient, but slowly in seconds; 3 is fast, but learns nothing.
    curves = {
        0: curve((10, 50), (20, 100)),
        1: curve((1, 30), (2, 60)),
        2: curve((2, 30), (4, 61)),
        3: curve((0.1, 1), (0.2, 2)),
    }
    assert level(list(curves.values()), 2, None) == 61.0, "the second highest"
    assert ranked(curves, 2, Goal("seconds"))[0] == 2, "the first of two that reach it"
    assert ranked(curves, 4, Goal("seconds"))[-1] == 0 and level(list(curves.values()), 4, None) == 2.0
    assert ranked(curves, 2, Goal("seconds", 30.0))[0] == 1, "no level is above the target"
    assert ranked(curves, 1, Goal("return"))[0] == 0


def test_rungs_of_few_evaluations() -> None:
    assert rungs([10, 20, 30]) == [10, 30]
    assert rungs(range(1, 28)) == [3, 9, 27]
    assert rungs([5]) == [5]
    assert [cut(count, 1, 3) for count in (9, 27, 81)] == [(3, 6), (5, 18), (14, 54)]
    assert [cut(count, 3, 3) for count in (9, 27, 81)] == [(3, 3)] * 3, "as many reach the target as are judged"


@given(
    st.lists(st.sampled_from("abcdef"), min_size=1, max_size=30),
    st.sets(st.sampled_from("abcdef"), max_size=2),
    st.integers(1, 4),
)
def test_two_learning_rates_of_each_arm_go_on(names: list[str], baselines: set[str], arms: int) -> None:
    """A baseline whose rate was chosen after a ninth of the steps made the winner look better than it is."""
    going = going_on(range(len(names)), dict(enumerate(names)), baselines, arms)
    assert len(set(going)) == len(going)
    leading = list(dict.fromkeys(names))
    for name in leading:
        ranks = [rank for rank, other in enumerate(names) if other == name]
        is_going = leading.index(name) < arms or name in baselines
        assert sorted(rank for rank in going if names[rank] == name) == (ranks[:2] if is_going else [])
    firsts = len({names[rank] for rank in going})
    assert len({names[rank] for rank in going[:firsts]}) == firsts, "the best of each comes first"


def test_watches_end_runs_at_rungs_and_targets() -> None:
    def row(round_: int, *values: float | None) -> dict[str, Any]:
        known = [value for value in values if value is not None]
        average = sum(known) / len(known) if known else None
        return {"round": round_, "eval_return_mean": average, "per_seed": {"eval_return_mean": list(values)}}

    by_mean, every = Reached(9, 10.0), Reached(9, 10.0, every_seed=True)
    assert not by_mean(row(1, 5.0, 14.0)) and by_mean(row(2, 5.0, 15.0)) and by_mean(row(9, None, None))
    assert not every(row(1, 5.0, 15.0)) and every(row(2, 12.0, 3.0)), "each seed has reached it once"
    assert not Reached(9)(row(8, 1e9)), "no target"


def evaluations(*seeds: tuple[np.ndarray, np.ndarray]) -> list[dict[str, Any]]:
    """Records of evaluations of seeds that have one clock."""
    return [
        {
            "round": index + 1,
            "simulated_seconds": float(x),
            "eval_return_mean": float(np.mean([y[index] for _, y in seeds])),
            "per_seed": {
                "simulated_seconds": [float(x)] * len(seeds),
                "eval_return_mean": [float(y[index]) for _, y in seeds],
            },
        }
        for index, x in enumerate(seeds[0][0])
    ]


def learner(seconds: float, noise: np.random.Generator | None, seeds: int = 8) -> list[dict[str, Any]]:
    """Planted results: each seed rises in a straight line to 100 in so many seconds, give or take."""
    x = np.linspace(0, 40, 81)
    factors = np.ones(seeds) if noise is None else np.exp(0.1 * noise.normal(size=seeds))
    return evaluations(*[(x, np.minimum(100.0, 100.0 * x / (seconds * factor))) for factor in factors])


def verdict(*runs: list[dict[str, Any]]) -> list[Judged]:
    goal = Goal("seconds", 90.0)
    return ordered([judged(n, f"arm {n}", 1e-3, run, goal, 40.0, TIMING) for n, run in enumerate(runs)], goal)


def test_a_planted_best_is_found_and_a_planted_tie_is_a_tie() -> None:
    draw = np.random.default_rng(0)
    goal = Goal("seconds", 90.0)
    results = verdict(learner(20.0, draw), learner(10.0, draw), learner(30.0, draw))
    assert [own.number for own in results] == [1, 0, 2]
    assert results[0].interval.middle == pytest.approx(9.0, rel=0.1) and results[0].reached == 8
    assert all(one.separated for one in differences(results, goal))
    assert differences(results, goal)[0].ratio == pytest.approx(2.0, rel=0.15)
    same = verdict(learner(10.0, None), learner(10.0, None))
    assert [own.number for own in same] == [0, 1]
    (tie,) = differences(same, goal)
    assert not tie.separated and tie.ratio == 1.0


def test_false_separations_are_as_rare_as_the_level_says() -> None:
    goal, wrong = Goal("seconds", 90.0), 0
    for seed in range(200):
        draw = np.random.default_rng(seed)
        results = verdict(*[learner(10.0, draw) for _ in range(2)])
        wrong += differences(results, goal)[0].separated
    assert 1 <= wrong <= 22, "5 % of 200, give or take"


def test_seeds_that_miss_the_target_count_twice_the_longest_run() -> None:
    flat = [(np.array([1.0, 2.0]), np.array([0.0, 5.0]))]
    assert to_target(flat, 4.0, 7.0) == [pytest.approx(1.8)] and to_target(flat, 6.0, 7.0) == [14.0]
    (own,) = verdict(learner(100.0, None))
    assert own.reached == 0 and own.values == [80.0] * 8


def test_further_learners_that_do_not_help() -> None:
    noise = np.random.default_rng(0).normal(size=5)

    def with_learners(n: int, seconds: float) -> Scaling:
        return Scaling(n, [seconds + 0.1 * value for value in noise * n], 1.0)

    goal = Goal("seconds", 1.0)
    falling = [with_learners(8, 12.0), with_learners(2, 40.0), with_learners(4, 20.0), with_learners(16, 12.0)]
    assert enough(falling, goal) == (8, 8)
    assert enough(falling[1:3], goal) == (4, 4)
    assert enough(falling, Goal("return")) == (2, 2), "returns that fall"


def test_dominated_systems() -> None:
    def own(seconds: float, dollars: float, staleness: float, updates: float = 4.0) -> Timing:
        return Timing(seconds, dollars, staleness, 0.0, 1.0, 1.0, updates)

    timings = {"slow": own(3, 3, 3), "fast": own(1, 1, 1), "stale": own(0.5, 0.5, 9), "same": own(1, 1, 1)}
    assert dominated(timings) == {"slow": "fast"}
    assert dominated(timings, ["slow"]) == {}, "a baseline stays"
    more = {"grouped": own(1, 1, 1, 4), "each gradient": own(3, 3, 3, 8)}
    assert dominated(more) == {}, "more updates of the same data may learn more"
    near = {"a": own(1, 1, 1), "b": own(1.001, 1.5, 3)}
    assert dominated(near) == {}, "nearly as fast"


def test_staleness_of_a_log_beside_the_timelines() -> None:
    log = REPOSITORY / "examples" / "cluster" / "jobs.csv"
    text = logged(log, {"async": TIMING._replace(staleness=3.25), "all-reduce": TIMING})
    assert re.search(
        r"were [\d.]+ versions stale on average when they were aggregated; .*: async 3.2, all-reduce 0", text
    )


# Candidates -----------------------------------------------------------------------------------------------------------


def space(tree: Any, folder: Path) -> Path:
    path = folder / "space.yaml"
    path.write_text(yaml.safe_dump(tree))
    return path


def test_baselines_are_always_there(tmp_path: Path) -> None:
    tree = {"systems": {"mine": ["system=async"]}, "corrections": {"V": ["algorithm.advantage=vtrace"]}}
    arms = Space.read(space(tree, tmp_path)).arms()
    assert [arm.name for arm in arms] == [*BASELINES, "mine", *(f"{name}, V" for name in BASELINES), "mine, V"]
    assert [arm.name for arm in arms if arm.baseline] == list(BASELINES)
    assert {arm.system for arm in arms} == {"mine", *BASELINES}


def test_arms_that_contradict_the_user_are_left_out(tmp_path: Path) -> None:
    tree = {
        "systems": {"mine": ["system=async"]},
        "actors": {"": ["system.actors=barrier"], "free": ["system.actors=independent"]},
        "corrections": {"V": ["algorithm.advantage=vtrace"]},
    }
    overrides = [*SMALL, "system.actors=independent", "algorithm.advantage=nstep"]
    tried, refused = candidates(overrides, Space.read(space(tree, tmp_path)), Options())
    assert {own.arm.name: own.config.system.actors for own in tried} == {
        **dict.fromkeys(BASELINES, "barrier"), "mine, free": "independent",
    }  # fmt: skip
    assert {own.config.algorithm.advantage for own in tried} == {"nstep"}
    assert refused["mine"] == "it has system.actors=barrier, and system.actors=independent is given."
    assert "mine, free, V" in refused


@pytest.mark.parametrize("line", ["seed=1000", "num_seeds=3", "run.dir=a", "executor=live"])
def test_what_all_candidates_share_is_no_part_of_a_space(line: str, tmp_path: Path) -> None:
    own = Space.read(space({"systems": {"a": ["system=async"], "b": ["system=async", line]}}, tmp_path))
    with pytest.raises(ConfigError, match=f"b: {line} is not possible in a space"):
        candidates(SMALL, own, Options())


def test_systems_are_chosen_by_name_in_any_case(tmp_path: Path) -> None:
    own = Space.read(space({"systems": {"Mine": ["system=async"], "other": ["system=ssp"]}}, tmp_path))
    assert list(own.only(["mine"]).systems) == ["Mine"]
    with pytest.raises(ConfigError, match="--systems: min is none of Mine, other"):
        own.only(["min"])


def test_seeds_that_confirm_are_seeds(tmp_path: Path) -> None:
    own = Space.read(space({"systems": {"mine": ["system=async"]}}, tmp_path))
    last = LAST_SEED - FRESH - 2 * Options().fresh_seeds + 1
    candidates([*SMALL, f"seed={last}"], own, Options())
    with pytest.raises(ConfigError, match="seeds that search and seeds that judge differ"):
        candidates([*SMALL, f"seed={last + 1}"], own, Options())


@given(st.lists(st.floats(1e-3, 1e3), min_size=1, max_size=2000))
def test_long_tables_are_reduced_to_the_same_mean(table: list[float]) -> None:
    short = reduced(table)
    assert len(short) == min(len(table), MOST_DURATIONS)
    np.testing.assert_allclose(np.mean(short), np.mean(table), rtol=1e-9)
    assert min(table) * (1 - 1e-9) <= min(short) and max(short) <= max(table) * (1 + 1e-9)


def test_a_larger_budget_searches_again_until_finalists_are_judged(tmp_path: Path) -> None:
    tried, _ = candidates(SMALL, Space.read(space({"systems": {"mine": ["system=async"]}}, tmp_path)), Options())

    def decided(budget: float) -> Decisions:
        return Decisions(tmp_path, tried, budget)

    first = decided(60.0)
    first.make("rung 1", [1])
    assert "rung 1" in decided(60.0) and "rung 1" in decided(30.0)
    wider = decided(90.0)
    assert "rung 1" not in wider
    wider.make("rung 1", [1, 0])
    wider.make("judgement", {"numbers": [1], "seeds": 5})
    assert decided(900.0)["rung 1"] == [1, 0]


def test_candidates_close_to_the_configured_rate_come_first(tmp_path: Path) -> None:
    tree = {"systems": {"mine": ["system=async"]}, "learning_rates": [0.1, 1, 1.0001, 4]}  # two are the same
    tried, refused = candidates([*SMALL, "algorithm.learning_rate=1e-3"], Space.read(space(tree, tmp_path)), Options())
    assert [own.learning_rate for own in tried][::3] == [1e-3, 4e-3, 1e-4] and not refused
    assert [own.arm.name for own in tried[:3]] == [*BASELINES, "mine"]
    assert all(own.config.num_seeds == 2 and own.config.evaluation.points == 27 for own in tried)
    assert rates([1, 1]) == [1, 1]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("system=async", "system=async is not possible: the system is what choose chooses; --systems"),
        ("num_seeds=3", "num_seeds=3 is not possible: --seeds N"),
        ("executor=live", "executor=live is not possible: candidates are simulated"),
        ("evaluation.points=0", "evaluation.points and evaluation.episodes must not be 0"),
        ("delays.by=episodes", "delays.by=episodes is for system.actors=independent"),
        ("algorithm.learning_rat=3", "algorithm.learning_rat"),
    ],
)
def test_overrides_that_are_not_possible(line: str, told: str, tmp_path: Path) -> None:
    tree = {"systems": {"mine": ["system=async"]}}
    with pytest.raises(ConfigError, match=None) as error:
        refuse([*SMALL, line])
        candidates([*SMALL, line], Space.read(space(tree, tmp_path)), Options())
    assert told in str(error.value)


def test_systems_that_cannot_run_are_named_with_the_reason(tmp_path: Path) -> None:
    tree = {"systems": {"mine": ["system=async"], "broken": ["system=async", "system.weights=power", "system.rho=-1"]}}
    tried, refused = candidates(SMALL, Space.read(space(tree, tmp_path)), Options())
    assert list(refused) == ["broken"] and "system.rho must be" in refused["broken"]
    assert "broken" not in {own.arm.name for own in tried}


# Equal hardware -------------------------------------------------------------------------------------------------------


def test_one_learner_uses_as_many_devices() -> None:
    """It makes as many updates of as many samples as one learner alone, in less time."""
    common = [*SMALL, "algorithm.minibatches=2", "delays=constant"]
    whole = load_config([*common, "system=allreduce", "system.learners=4"])
    split = whole.replace(one_learner(whole))
    alone = load_config([*common, "system=allreduce", "system.learners=1"])
    assert split.algorithm.minibatches == 8 and split.delays.learner.seconds == whole.delays.learner.seconds / 4
    ones, others = (Timeline.of(config, 0).next_round() for config in (split, alone))
    assert len(ones.groups) == len(others.groups), "as many updates"
    assert {len(group.gradients) for group in ones.groups} == {4}
    assert timing(split).seconds < timing(alone).seconds
    again = load_config([*common, "system=allreduce", "system.learners=4", *one_learner_overrides(split)])
    assert again.algorithm.minibatches == 8
    assert again.delays.learner.seconds == pytest.approx(split.delays.learner.seconds, rel=1e-5)


def test_one_learner_that_cannot_be_split() -> None:
    config = load_config([*SMALL, "system=allreduce", "system.learners=3", "algorithm.minibatches=2"])
    with pytest.raises(ConfigError, match="do not divide the 64 samples of a batch"):
        one_learner(config)


@pytest.mark.parametrize("delays", ["constant", "pareto", "lognormal", "measured"])
def test_durations_are_scaled(delays: str) -> None:
    config = load_config([*SMALL, f"delays={delays}", "system=allreduce"])
    twice = config.replace(scaled(config, 2.0))
    ones, others = timing(config), timing(twice)
    passing = config.platform.cache  # passing data takes as long as before
    assert others.seconds == pytest.approx(2 * ones.seconds, rel=0.05 if passing else 1e-9)


def test_mean_curve_leaves_out_what_has_no_return() -> None:
    rows = learner(10.0, None, 1)[:3]
    rows[1]["eval_return_mean"] = None
    x, y = mean_curve(rows, "simulated_seconds")
    assert len(x) == len(y) == 2


def test_systems_that_the_budget_did_not_reach_are_named() -> None:
    """An answer of two baselines says nothing about a system that nobody trained."""
    systems = ["central", "allreduce", "async", "async", "ssp", "softsync"]
    own = [SimpleNamespace(arm=SimpleNamespace(system=system)) for system in systems]
    choice = SimpleNamespace(candidates=own, options=SimpleNamespace(budget=600.0), directory=Path("chosen"))
    answer = SimpleNamespace(choice=choice, rungs=[[0, 1], [1]], beaten={"ssp": "async"})
    sentence = _untried(answer)  # type: ignore[arg-type]
    assert sentence.startswith(" This says nothing about async, softsync: the budget ended before they were tried.")
    assert sentence.endswith("--resume chosen --budget 30m")
    answer.rungs = [[0, 1, 3, 5]]
    assert _untried(answer) == ""  # type: ignore[arg-type]
