"""Numbers of the pages on live runs, learning, environments and benchmarks."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from published.case import Case
from published.files import document, table
from published.statistics import welch
from published.texts import WORDS, gain, loss, plus_minus, row, span

FRONT, FINDINGS = "README.md", "results/README.md"
LIVE, LEARNING, ENVIRONMENTS, BENCHMARKS = (
    f"results/{study}/README.md" for study in ("live", "learning", "environments", "benchmarks")
)
APPO, PPO = "RLlib's APPO", "RLlib's PPO"


def percent(share: float) -> str:
    return f"{100 * share:.0f}"


# Live runs ------------------------------------------------------------------------------------------------------------


def errors_of_seconds() -> list[float]:
    """Errors of simulated seconds as shares of live ones, of each case."""
    return [abs(case["seconds"]["error"]) for case in document("live/foretold.json")["rows"]]


def within(goal: float) -> str:
    return WORDS[sum(error <= goal for error in errors_of_seconds())]


def worst_case() -> str:
    """The largest error of simulated seconds, of a case with too few."""
    worst = max(document("live/foretold.json")["rows"], key=lambda case: abs(case["seconds"]["error"]))["seconds"]
    assert worst["foretold"] < worst["live"]
    return f"{percent(abs(worst['error']))} % too few"


def surely_within(goal: float) -> str:
    """Cases in which the interval of the error does not leave the goal."""
    seconds = [case["seconds"] for case in document("live/foretold.json")["rows"]]
    return WORDS[sum(abs(each["error"]) + each["error_ci95"] <= goal for each in seconds)]


def live_beside(job: str, way: str) -> float:
    """Median of the quotients of live steps a second and another program's, of the same seeds."""
    found = {(each["job"], each["way"]): np.array(each["runs"]) for each in document("live/cost.json")}
    return float(np.median(found[job, "live"] / found[job, way]))


# Learning and environments --------------------------------------------------------------------------------------------


def row_of_defaults(env: str, mark: str, digits: int) -> str:
    """Returns of the defaults and of sbx, the difference, and returns of the former defaults."""
    now, before = (document(f"learning/{name}.json") for name in ("defaults", "defaults_former"))
    ours, sbx, former = (
        [line["return_mean"] for line in lines if (line["env"], line["way"]) == (env, way)]
        for lines, way in ((now, "defaults"), (now, "sbx"), (before, "defaults"))
    )
    difference = mark + gain(welch(ours, sbx), digits) + mark
    return row(plus_minus(ours, digits), plus_minus(sbx, digits), difference, plus_minus(former, digits))


def chosen(env: str, way: str) -> str:
    """Mean return of a way among which the defaults were chosen."""
    runs = document("learning/defaults_choice.json")["runs"]
    mean = np.mean([line["return_mean"] for line in runs if (line["env"], line["way"]) == (env, way)])
    return f"{mean:,.0f}".replace("-", "−")


def row_of_rollouts(rollout: int) -> str:
    """How soon MinAtar's games reach their returns at 5e-3, by the length of rollouts."""
    names = {"breakout_long": "8", "breakout_short": "8", "asterix": "4", "spaceinvaders": "8"}
    cells = dict.fromkeys(("breakout", "asterix", "spaceinvaders"), "–")
    for name, minibatches in names.items():
        for line in table(f"learning/search/{name}.csv"):
            given = {key.rpartition(".")[2]: value for key, value in line.items()}
            taken = (given["rollout_length"], given.get("minibatches", "8"), given["learning_rate"])
            if taken == (str(rollout), minibatches, "0.005"):
                soon = f"{given['threshold_seeds']} of 4"
                if name != "asterix":
                    soon = f"{float(given['threshold_env_steps']) / 1000:.0f}k"
                cells[name.partition("_")[0]] = f"{soon}, {float(given['return_mean']):.1f}"
    return row(*cells.values())


def pendulums_that_are_solved() -> str:
    """Settings with which every seed of the pendulum reaches −200, in the search for its file."""
    lines = table("learning/search/pendulum.csv")
    (solved,) = (line for line in lines if line["threshold_seeds"] == "4")
    rollout, epochs, minibatches = (solved[f"algorithm.{key}"] for key in ("rollout_length", "epochs", "minibatches"))
    steps = float(solved["threshold_env_steps"])
    return f"rollouts of {rollout} and {epochs} epochs of {minibatches} minibatches alone, after {steps:,.0f} steps"


def beside_peer(name: str, ours: str, peer: str, digits: int) -> str:
    returns = document(f"learning/off_policy/{name}.json")
    return f"ours is {loss(welch(returns[ours], returns[peer]), digits)} higher"


def return_of(folder: str, digits: int) -> str:
    return plus_minus(document(f"environments/{folder}/summary.json")["eval_return_per_seed"], digits)


# Benchmarks -----------------------------------------------------------------------------------------------------------


def measured(name: str, part: str, job: str) -> dict[str, Any]:
    """Runs of a comparison with other programs, by program."""
    return {each["program"]: each["runs"] for each in document(f"benchmarks/{name}.json")[part] if each["job"] == job}


def throughput_beside_rejax(job: str) -> str:
    programs = measured("peers_throughput", "throughput", job)
    pairs = zip(programs["ours"], programs["rejax"], strict=True)
    return f"{np.median([ours['steps_per_second'] / peer['steps_per_second'] for ours, peer in pairs]):.2f}"


def returns_of(job: str) -> str:
    """File that has the times to a return of a job."""
    if job in ("freeway_minatar", "brax_hopper"):
        return "peers_return_more"
    return "peers_minatar" if job.startswith(("asterix", "breakout")) else "peers_return"


def medians_beside_rejax(job: str, seconds: Callable[[dict[str, Any]], float | None]) -> list[str]:
    """Median seconds to a return, of ours and of rejax; endless where a run did not get there."""
    programs = measured(returns_of(job), "return", job)
    return [f"{np.median([seconds(run) or math.inf for run in programs[name]]):.1f}" for name in ("ours", "rejax")]


def times_beside_rejax(job: str) -> str:
    """Median seconds of the whole command, of ours and of rejax."""
    return row(*medians_beside_rejax(job, lambda run: run["command_seconds_to_return"]))


def training_beside_rejax(form: str, jobs: tuple[str, ...]) -> str:
    """Median seconds of training, without compilation, of ours and of rejax."""
    return form.format(
        *(median for job in jobs
          for median in medians_beside_rejax(job, lambda run: run["seconds_to_return"] - run["compile_seconds"]))
    )  # fmt: skip


def return_beside_rejax(job: str) -> str:
    """How much sooner a return is reached, the median of pairs; 0 where ours does not get there."""
    programs = measured(returns_of(job), "return", job)
    times = [[run.get("command_seconds_to_return") for run in programs[name]] for name in ("ours", "rejax")]
    ratios = [peer / ours if ours else 0.0 for ours, peer in zip(*times, strict=True)]
    return f"{np.median(ratios):.2f}"


def shares_of_the_limit() -> str:
    jobs = document("benchmarks/limit.json")["jobs"]
    _, *others = sorted(100 * job["steps_per_second"] / job["limit_steps_per_second"] for job in jobs)
    return span(others, 0) + " %"


def quotients_of_token_tasks(name: str, program: str) -> list[float]:
    """Steps a second of ours over another program's, of the same seeds, sorted."""
    found = {each["program"]: each["runs"] for each in document(f"benchmarks/{name}.json")}
    pairs = zip(found["ours"], found[program], strict=True)
    return sorted(ours["steps_per_second"] / other["steps_per_second"] for ours, other in pairs)


def beside_plain_loop() -> str:
    least, *_, most = ratios = quotients_of_token_tasks("tokens", "plain loop")
    return f"{np.median(ratios):.2f} ({least:.2f} to {most:.2f})"


def beside_trl() -> str:
    least, most = ratios = quotients_of_token_tasks("tokens_trl", "trl")
    return f"{np.median(ratios):.1f} times ({least:.1f} and {most:.1f}"


def cores_of_a_population() -> str:
    return f"{percent(document('benchmarks/tokens_population.json')[0]['cores'] / 2)} % of two cores"


def cost_of_truncation() -> str:
    gradient = document("benchmarks/engine.json")["microseconds_per_gradient"]
    return f"{gradient['stellaris'] / gradient['stellaris, no truncation']:.2f} times"


LIVE_RUNS = [
    Case(FINDINGS, "**The simulator tells the time of live runs", "within 16 %",
         lambda: f"within {percent(max(errors_of_seconds()))} %"),
    Case(LIVE, "**On average, yes: over five seeds", "within 15 % in eleven of them",
         lambda: f"within 15 % in {within(0.15)} of them"),
    Case(LIVE, "**On average, yes: over five seeds", "16 % too few", worst_case),
    Case(LIVE, "**On average, yes: over five seeds", "stays within 15 % in three cases",
         lambda: f"stays within 15 % in {surely_within(0.15)} cases"),
    Case(LIVE, "as fast as the compiled engine with", "0.39 to 0.54 times",
         lambda: span([live_beside(job, "compiled") for job in ("cartpole", "hopper")]) + " times"),
    Case(LIVE, "| RLlib's APPO |", "2.4 times", lambda: f"{live_beside('cartpole', APPO):.1f} times"),
    Case(LIVE, "| RLlib's APPO |", "2.9 times", lambda: f"{live_beside('hopper', APPO):.1f} times"),
    Case(LIVE, "| RLlib's PPO | 5", "0.83 times as fast", lambda: f"{live_beside('cartpole', PPO):.2f} times as fast"),
    Case(LIVE, "| RLlib's PPO | 5", "1.24 times as fast", lambda: f"{live_beside('hopper', PPO):.2f} times as fast"),
]  # fmt: skip

RETURNS = [
    *(Case(LEARNING, f"| {env} |", printed, partial(row_of_defaults, env, mark, digits))
      for env, mark, digits, printed in (
        ("MountainCar-v0", "**", 0, "−130 ± 16 | −200 ± 0 | **+70 ± 16** | −134 ± 8"),
        ("Swimmer-v5", "**", 0, "−3 ± 15 | 46 ± 1 | **−49 ± 15** | 4 ± 32"),
        ("HalfCheetah-v5", "", 0, "689 ± 426 | 162 ± 266 | +527 ± 432 | 146 ± 426"),
        ("Reacher-v5", "", 1, "−7.1 ± 0.5 | −9.8 ± 2.1 | +2.7 ± 2.1 | −12.1 ± 3.3"),
        ("InvertedDoublePendulum-v5", "", 0, "2944 ± 2127 | 4468 ± 5257 | −1524 ± 5169 | 436 ± 25"),
        ("CartPole-v1", "", 0, "477 ± 65 | 500 ± 0 | −23 ± 65 | 499 ± 3"),
        ("MountainCarContinuous-v0", "", 0, "94 ± 2 | 56 ± 63 | +38 ± 63 | 77 ± 54"),
        ("Walker2d-v5", "", 0, "425 ± 121 | 360 ± 114 | +65 ± 138 | 413 ± 33"),
    )),
    Case(LEARNING, "- *One learner*: on Pendulum",
         "−426, with eight asynchronous learners at the same values −981 (sbx −862)",
         lambda: "{}, with eight asynchronous learners at the same values {} (sbx {})".format(
             *(chosen("Pendulum-v1", way) for way in ("entropy", "async", "sbx")))),
    Case(LEARNING, "- *Scaled rewards*: without", "−1,238", lambda: chosen("Pendulum-v1", "raw")),
    Case(LEARNING, "- *No overlap*: on Hopper", "725, with overlap 408 (sbx 890)",
         lambda: "{}, with overlap {} (sbx {})".format(
             *(chosen("Hopper-v5", way) for way in ("mid_nolap", "mid", "sbx")))),
    *(Case(LEARNING, f"| {near} |", printed, partial(row_of_rollouts, rollout)) for near, rollout, printed in (
        ("16", 16, "36k, 9.4 | – | –"), ("32", 32, "41k, 9.1 | 0 of 4, 1.1 | 191k, 37.9"),
        ("64 (taken)", 64, "68k, 12.5 | 4 of 4, 1.5 | 164k, 37.5"), ("128", 128, "115k, 8.7 | – | 246k, 28.6"),
    )),
    Case(LEARNING, "- *The pendulum*", "rollouts of 64 and 4 epochs of 16 minibatches alone, after 156,672 steps",
         pendulums_that_are_solved),
    Case(LEARNING, "**Beside rejax's DQN**", "ours is 5.8 ± 15.9 higher",
         partial(beside_peer, "breakout_beside_rejax", "stellaris_jax", "rejax 0.1.3", 1)),
    Case(LEARNING, "**Beside sbx's SAC**", "ours is 86 ± 219 higher",
         partial(beside_peer, "hopper_beside_sbx", "stellaris_jax 0.3.0.dev0", "sbx 0.28.0", 0)),
    *(Case(ENVIRONMENTS, f"({folder}/summary.json)", printed, partial(return_of, folder, digits))
      for folder, digits, printed in (
        ("envpool-hopper", 0, "2591 ± 686"), ("envpool-walker2d", 0, "2680 ± 648"),
        ("brax-inverted_pendulum", 0, "899 ± 114"), ("brax-hopper", 0, "677 ± 237"),
        ("gymnax-breakout_minatar", 1, "35.4 ± 17.1"), ("gymnax-asterix_minatar", 1, "2.9 ± 0.4"),
        ("gymnax-spaceinvaders_minatar", 1, "135.7 ± 12.8"), ("gymnax-freeway_minatar", 1, "41.8 ± 3.5"),
        ("gymnax-pendulum", 1, "−167.9 ± 5.3"),
        ("envpool-humanoid", 0, "397 ± 93"), ("envpool-roadrunner", 0, "1370 ± 317"),
        ("envpool-kungfumaster", 0, "1292 ± 299"),
    )),
]  # fmt: skip

SPEED = [
    Case(FRONT, "| throughput at the same work | [rejax]", "brax's hopper 1.04",
         lambda: f"brax's hopper {throughput_beside_rejax('hopper_spring')}"),
    Case(FRONT, "| time to a return, own settings",
         "CartPole 1.47, Acrobot 1.44, pendulum 1.85, brax's hopper 2.70 (a target set after our search), "
         "MinAtar: Asterix 1.85, Breakout 1.53, SpaceInvaders 1.12, Freeway 1.08",
         lambda: "CartPole {}, Acrobot {}, pendulum {}, brax's hopper {} (a target set after our search), "
         "MinAtar: Asterix {}, Breakout {}, SpaceInvaders {}, Freeway {}".format(
             *map(return_beside_rejax, ("cartpole", "acrobot", "pendulum", "brax_hopper", "asterix_minatar",
                                        "breakout_minatar", "spaceinvaders_minatar", "freeway_minatar")))),
    *(Case("docs/speed.md", f"| {near} |", printed, partial(times_beside_rejax, job)) for near, job, printed in (
        ("CartPole: 475", "cartpole", "6.9 | 10.1"), ("Acrobot: −85", "acrobot", "6.6 | 10.3"),
        ("Pendulum: −200", "pendulum", "8.5 | 17.8"),
        ("SpaceInvaders-MinAtar: 20", "spaceinvaders_minatar", "13.1 | 16.4"),
        ("Freeway-MinAtar: 20", "freeway_minatar", "10.8 | 11.9"), ("brax hopper: 500", "brax_hopper", "19.1 | 51.7"),
        ("Asterix-MinAtar: 1.5", "asterix_minatar", "6.6 | 13.7"),
        ("Breakout-MinAtar: 5", "breakout_minatar", "3.1 | 5.0"),
        ("Asterix, rejax with our settings", "asterix_alike", "6.7 | 9.1"),
        ("Breakout, rejax with our settings", "breakout_alike", "3.8 | 4.7"),
    )),
    *(Case("docs/speed.md", "*On five of eight all of the lead", printed, partial(training_beside_rejax, form, jobs))
      for printed, form, jobs in (
        ("Breakout takes 1.6 here and 1.4 with rejax, Asterix 5.0 and 8.3",
         "Breakout takes {} here and {} with rejax, Asterix {} and {}", ("breakout_minatar", "asterix_minatar")),
        ("CartPole takes 2.8 here and 1.4 with rejax, Acrobot 3.2 and 1.6",
         "CartPole takes {} here and {} with rejax, Acrobot {} and {}", ("cartpole", "acrobot")),
        ("SpaceInvaders 8.5 and 7.0, the pendulum 4.2 and 9.0", "SpaceInvaders {} and {}, the pendulum {} and {}",
         ("spaceinvaders_minatar", "pendulum")),
        ("Freeway takes 7.2 here and 1.8 with rejax", "Freeway takes {} here and {} with rejax", ("freeway_minatar",)),
        ("for both 2.1 and 0.8, 5.0 and 3.3", "for both {} and {}, {} and {}", ("breakout_alike", "asterix_alike")),
    )),
    Case("docs/speed.md", "| Asterix, rejax with our", "1.46", lambda: return_beside_rejax("asterix_alike")),
    Case("docs/speed.md", "| Breakout, rejax with our", "1.24", lambda: return_beside_rejax("breakout_alike")),
    Case(BENCHMARKS, "**It runs at", "17 to 54 %", shares_of_the_limit),
    Case(BENCHMARKS, "| plain loop | 34,124", "1.03 (0.98 to 1.11)", beside_plain_loop),
    Case(BENCHMARKS, "- *TRL* 1.16", "4.1 times (3.8 and 4.5", beside_trl),
    Case(BENCHMARKS, "- *A population* of 16 seeds", "99 % of two cores", cores_of_a_population),
    Case("results/stellaris/README.md", "a forward pass for every policy in flight", "1.47 times", cost_of_truncation),
]  # fmt: skip

CASES = [*LIVE_RUNS, *RETURNS, *SPEED]
