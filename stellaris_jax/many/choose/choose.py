"""Choice of a system, a correction and a learning rate: timelines first, then a search by halving, then fresh seeds.

Every stage is a sweep on disk whose runs pause and go on. Decisions are stored when they are made, so a choice that was
killed and resumed ends as an uninterrupted one does, unless its budget was too small for all candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stellaris_jax.base.errors import RunError
from stellaris_jax.config.tree import Config
from stellaris_jax.many.choose.answer import Answer
from stellaris_jax.many.choose.arms import scaled
from stellaris_jax.many.choose.building import with_room
from stellaris_jax.many.choose.decisions import Decisions
from stellaris_jax.many.choose.files import FRESH, JUDGED, LEARNERS, NOWHERE, Choice, laid, resume_command, with_budget
from stellaris_jax.many.choose.objective import Goal, Reached, cut, default_target, going_on, mean_curve, ranked
from stellaris_jax.many.choose.screening import Timing, dominated, is_tried, logged, timing
from stellaris_jax.many.choose.stage import Stage, evaluations, run_of, rung_of
from stellaris_jax.many.choose.verdict import Judged, Scaling, judged, ordered
from stellaris_jax.runs.run_dir import locked
from stellaris_jax.telemetry.format import duration, plural

SHARES = (0.30, 0.42, 0.55)
"""Shares of the budget after which no run of a rung starts any more."""
JUDGED_BY = 0.95
"""Share of the budget that may be spent when the finalists are judged."""
SCALED_BY = 1.05
"""Share of the budget that may be spent when other numbers of learners have been tried."""
COMPILES = 2.0
"""Other seconds of a run that compiles a program of its own, relative to those of runs that may share one."""
RESERVE = 1.5
"""Budget that is proposed, relative to what the known pace needs: going on costs a start and compilation, too."""
FEWEST_SEEDS = 5
"""Fewest fresh seeds: those that an interval needs."""


def choose(choice: Choice, say: Callable[[str], None], since: float | None = None) -> Answer:
    """Make a choice, or continue it.

    Args:
      choice: the choice on disk.
      say: shows a sentence on the progress.
      since: second of `time.monotonic` from which time counts against the budget; now by default.

    Raises:
      Interrupted: a signal arrived and everything was saved; Abandoned after a second one.
      RunError: no candidate has a result, or the budget leaves no time to judge one.
    """
    with locked(choice.directory):
        work = _Work(choice, say, since)
        answer = None
        try:
            with work.stage.stoppable():
                answer = work.answer()
        except BaseException:
            with suppress(RunError):  # the first error tells more
                work.decisions.save()
            raise
        work.decisions.save()
    assert answer is not None, "a stopped choice raises Interrupted"
    return answer


class _Work:
    """Stages of a choice."""

    def __init__(self, choice: Choice, say: Callable[[str], None], since: float | None = None):
        self.choice, self.say = choice, say
        self.options, self.directory = choice.options, choice.directory
        self.decisions = Decisions(choice.directory, choice.candidates, choice.options.budget, since)
        self.candidates = choice.candidates
        self.stage = Stage(choice.directory, choice.options, self.decisions, say, resume_command(choice.directory))

    def answer(self) -> Answer:
        """Go through all stages."""
        timings, beaten = self._screen()
        tried = [n for n, own in enumerate(self.candidates) if is_tried(own.arm, timings, beaten)]
        rungs_ = self._search(tried)
        goal = self._goal(rungs_)
        finalists = self._finalists(rungs_)
        results = self._judge(finalists, goal, timings)
        confirmed, scalings = self._confirm(results[0], goal)
        return Answer(
            self.choice, goal, timings, beaten, rungs_, results, self._fresh, confirmed,
            self._confirming, scalings, self._slower(results),
            self.decisions.seconds, len(rungs_[0]),
        )  # fmt: skip

    # Timelines -----------------------------------------------------------------------------------------------------

    def _screen(self) -> tuple[dict[str, Timing], dict[str, str]]:
        """Forecast of every system, and the dominated ones."""
        first = {own.arm.system: own for own in reversed(self.candidates) if not own.arm.corrected}
        for own in self.candidates:
            first.setdefault(own.arm.system, own)  # it can only run with a correction
        if "timings" not in self.decisions:
            if refused := self.choice.refused:
                name, reason = next(iter(refused.items()))
                self.say(f"{plural(len(refused), 'candidate')} cannot run here, such as {name}: {reason}")
            self.say(f"timelines of {plural(len(first), 'system')}")
            figures = {name: self._timing(own.config) for name, own in first.items()}
            self.decisions.make("timings", figures)
        timings = {name: Timing(*figures) for name, figures in self.decisions["timings"].items()}
        if self.choice.log and "dominated" not in self.decisions:
            self.say(logged(Path(self.choice.log), timings))
        baselines = [own.arm.name for own in self.candidates if own.arm.baseline]
        return timings, self.decisions.make("dominated", dominated(timings, baselines))

    def _timing(self, config: Config) -> list[float]:
        with self.stage.during("a timeline"):
            return [*timing(config)]

    # Search --------------------------------------------------------------------------------------------------------

    def _search(self, tried: list[int]) -> list[list[int]]:
        """Candidates of each rung, best first, by successive halving (Jamieson and Talwalkar 2016)."""
        here, found = tried, []
        names = {number: self.candidates[number].arm.name for number in tried}
        baselines = {own.arm.name for own in self.candidates if own.arm.baseline}
        for index, share in enumerate(SHARES):
            name, (arms, reaching) = f"rung {index + 1}", cut(len(tried), index + 1, self.options.finalists)
            if name not in self.decisions:
                self._train_rung(index, here, share)
                curves = {number: self._curve(number, index) for number in here}
                curves = {number: curve for number, curve in curves.items() if self._is_there(number, index)}
                if not curves:
                    break
                self.decisions.make(name, ranked(curves, reaching, self.options.goal))
                if index == 0:
                    self._warn(tried)
            found.append(self.decisions[name])
            here = going_on(found[-1], names, baselines, arms)
            if arms <= self.options.finalists and len({names[number] for number in here}) == len(here):
                break  # all of them are judged, at the one learning rate that they have
        if not found:
            raise RunError(f"{self.directory}: no candidate has a result{self._advice()}")
        return found

    def _warn(self, tried: list[int]) -> None:
        """Say after the first rung if what is left for judging will hardly do for two finalists on the fewest seeds."""
        share, rounds = JUDGED_BY - SHARES[-1], max(self._rounds(number) for number in tried)
        needed = 2 * (self.decisions.setup + FEWEST_SEEDS * self.decisions.pace * rounds)
        if needed > share * self.options.budget:
            self.say(
                f"the budget of {duration(self.options.budget)} will hardly leave time to judge on fresh seeds, which "
                f"takes {duration(needed)} or more; stop here, and {self._with_budget(RESERVE * needed / share)}"
            )

    def _advice(self) -> str:
        """End of a sentence on a missing result: how to go on if time was short, else "."."""
        budget = self.options.budget
        if self.decisions.seconds < SHARES[0] * budget:
            return "."
        return f", because the budget of {duration(budget)} is spent; {self._with_budget(4.0 * budget)}"

    def _with_budget(self, seconds: float) -> str:
        return f"continue with: {with_budget(self.directory, seconds)}"

    def _rung(self, number: int, index: int) -> int:
        return rung_of(self.candidates[number].config, index)

    def _train_rung(self, index: int, numbers: Sequence[int], share: float) -> None:
        missing = [number for number in numbers if not self._is_there(number, index)]
        if not missing:
            return
        part = ("a ninth", "a third", "all")[index]
        self.say(f"rung {index + 1} of {len(SHARES)}: {plural(len(missing), 'candidate')}, {part} of their steps")
        target = self.options.goal.target
        watches = [Reached(self._rung(number, index), math.inf if target is None else target) for number in missing]
        configs = [self.candidates[number].config for number in missing]
        self.stage.train(configs, watches, share, "candidates")

    def _is_there(self, number: int, index: int) -> bool:
        """Whether a candidate has reached a rung, or the target before it."""
        run = run_of(self.candidates[number].config)
        if not run.evaluations or not run.curve or run.failure is not None:
            return False
        last, target = run.evaluations[-1], self.options.goal.target
        is_reached = target is not None and any(
            (row["eval_return_mean"] or -math.inf) >= target for row in run.evaluations
        )
        return bool(is_reached or last["round"] >= self._rung(number, index))

    def _curve(self, number: int, index: int) -> Any:
        """Mean curve of a candidate, up to a rung."""
        rows = [row for row in evaluations(self.candidates[number].config) if row["round"] <= self._rung(number, index)]
        return mean_curve(rows, self.options.goal.axis)

    # Judgement -----------------------------------------------------------------------------------------------------

    def _goal(self, found: Sequence[Sequence[int]]) -> Goal:
        """Goal with the target that holds: the user's, or one from the returns of the search."""
        goal = self.options.goal
        if goal.measure == "return" or goal.target is not None:
            return goal
        if "target" not in self.decisions:
            curves = [mean_curve(evaluations(self.candidates[n].config), goal.axis) for n in found[-1]]
            if not any(len(y) for _, y in curves):
                raise RunError(
                    f"{self.directory}: no evaluation of the search has a return, because no episode ended; accepted: "
                    "a larger evaluation.episode_limit, or --target."
                )
            self.decisions.make("target", float(f"{default_target(curves):.4g}"))
        return goal._replace(target=self.decisions["target"])

    def _finalists(self, found: Sequence[Sequence[int]]) -> list[int]:
        """Best candidates of different arms, and the best one of each baseline."""
        best: dict[str, int] = {}
        for ranking in reversed(found):
            for number in ranking:
                best.setdefault(self.candidates[number].arm.name, number)
        names = list(best)
        chosen = names[: self.options.finalists]
        chosen += [own.arm.name for own in self.candidates if own.arm.baseline and own.arm.name in best]
        return [best[name] for name in dict.fromkeys(chosen)]

    @property
    def _fresh(self) -> list[int]:
        first = self.candidates[0].config.seed + FRESH
        return [first + seed for seed in range(self.decisions["judgement"]["seeds"])]

    def _judge(self, finalists: list[int], goal: Goal, timings: dict[str, Timing]) -> list[Judged]:
        """Results of finalists and baselines on fresh seeds, best first."""
        if "judgement" not in self.decisions:
            self.decisions.make("judgement", self._affordable(finalists))
        numbers, seeds = self.decisions["judgement"]["numbers"], self.decisions["judgement"]["seeds"]
        fresh = {"seed": self._fresh[0], "num_seeds": seeds} | NOWHERE
        configs = [self.candidates[number].config.replace(fresh) for number in numbers]
        configs = laid(self.directory / JUDGED, configs, self.choice.overrides)
        if "judged" not in self.decisions:
            self.say(f"{plural(len(numbers), 'finalist')} on {seeds} fresh seeds")
        self.stage.to_target("judged", configs, goal, "finalists")
        runs = [evaluations(config) for config in configs]
        there = [index for index, there in enumerate(self.decisions["judged"]) if there]
        if not there:
            raise RunError(f"{self.directory}: no finalist has a result; their errors are above.")
        self.cutoff = cutoff = max(runs[index][-1][goal.axis] for index in there)
        results = []
        for index in there:
            own = self.candidates[numbers[index]]
            results.append(
                judged(
                    numbers[index], own.arm.name, own.learning_rate, runs[index], goal, cutoff, timings[own.arm.system]
                )
            )
        return ordered(results, goal)

    def _affordable(self, finalists: list[int]) -> dict[str, Any]:
        """Finalists and fresh seeds for which the budget has room: fewer seeds first, then fewer finalists.

        Raises RunError if there is room for none.
        """
        baselines = [number for number in finalists if self.candidates[number].arm.baseline]
        others = [number for number in finalists if number not in baselines]
        most = self.options.fresh_seeds
        each = setup = 0.0
        tried = [[*others[:count], *baselines] for count in range(len(others), min(1, len(others)) - 1, -1)]
        for chosen in [*tried, [*others[:1], *baselines[:1]], others[:1] or baselines[:1]]:
            each = self.decisions.pace * sum(self._rounds(number) for number in chosen)
            setup = self.decisions.setup * len(chosen)
            left = JUDGED_BY * self.options.budget - self.decisions.seconds - setup
            seeds = most if each * most <= left else int(max(0.0, left) / each) if each else 0
            if seeds >= min(most, FEWEST_SEEDS):
                return {"numbers": [number for number in finalists if number in chosen], "seeds": seeds}
        needed = RESERVE * (self.decisions.seconds + setup + each * min(most, FEWEST_SEEDS)) / JUDGED_BY
        raise RunError(
            f"{self.directory}: the budget of {duration(self.options.budget)} leaves no time to judge a candidate on "
            f"fresh seeds; {self._with_budget(needed)}"
        )

    def _rounds(self, number: int) -> int:
        """Rounds that a seed of a candidate may take to the target: twice as many as in the search, or all."""
        config, target = self.candidates[number].config, self.options.goal.target
        known = [row for row in evaluations(config) if row["eval_return_mean"] is not None]
        reached = [row["round"] for row in known if target is not None and row["eval_return_mean"] >= target]
        return min(config.rounds, 2 * reached[0]) if reached else config.rounds

    # Further learners, and slower ones -----------------------------------------------------------------------------

    def _confirm(self, best: Judged, goal: Goal) -> tuple[Judged | None, list[Scaling]]:
        """Result of the best one on seeds that did not choose it, and with other numbers of learners on the same seeds.

        The mean of the best of several is too good on the seeds that chose it. Both are missing if time is over, and
        the second one if learners are one learner.
        """
        own = self.candidates[best.number]
        seeds, usual = self._confirming, own.config.system.learners
        fresh = {"seed": seeds[0], "num_seeds": len(seeds)} | NOWHERE
        configs = {usual: own.config.replace(fresh)}
        if not own.arm.one_learner:
            for number in sorted({max(1, usual // 4), max(1, usual // 2), 2 * usual} - {usual}):
                config = with_room(own.config.replace({**fresh, "system.learners": number}), number)
                configs |= {} if config is None else {number: config}
        numbers = self.decisions.make("learners", self._in_time(configs, len(seeds)))
        configs = {number: configs[number] for number in numbers if number in configs}
        if not configs:
            return None, []
        placed = laid(self.directory / LEARNERS, list(configs.values()), self.choice.overrides)
        if "scaled" not in self.decisions:
            named = ", ".join(map(str, sorted(configs)))
            self.say(f"the best one on {len(seeds)} further seeds, with {named} learners")
        self.stage.to_target("scaled", placed, goal, "runs")
        there = [
            pair for pair, flag in zip(zip(configs, placed, strict=True), self.decisions["scaled"], strict=True) if flag
        ]
        runs = {number: evaluations(config) for number, config in there}
        cutoff = max([rows[-1][goal.axis] for rows in runs.values()], default=0.0)
        results = {
            number: judged(
                best.number, best.name, best.learning_rate, rows, goal, max(cutoff, self.cutoff), best.timing
            )
            for number, rows in runs.items()
        }
        timings = {number: Timing(*self._timing(config)) for number, config in there}
        scalings = [
            Scaling(number, own.values, timings[number].staleness, own.reached)
            for number, own in sorted(results.items())
        ]
        return results.get(usual), scalings if usual in results and len(scalings) > 1 else []

    @property
    def _confirming(self) -> list[int]:
        """Seeds that neither search nor judge."""
        fresh = self._fresh
        return [fresh[-1] + 1 + seed for seed in range(len(fresh))]

    def _in_time(self, configs: Mapping[int, Config], seeds: int) -> list[int]:
        """Numbers of learners for which there is time: all, the usual one, which is the first, or none."""
        for numbers in (list(configs), list(configs)[:1]):
            runs = [configs[number] for number in numbers]
            needed = COMPILES * self.decisions.setup * len(runs) + seeds * self.decisions.pace * sum(
                config.rounds for config in runs
            )
            if self.decisions.seconds + needed < SCALED_BY * self.options.budget:
                return numbers
        return []

    def _slower(self, results: Sequence[Judged]) -> dict[str, list[Timing]]:
        """Forecasts of the results if learners, or actors, take twice as long."""
        kinds = {"learners": "delays.learner", "actors": "delays.actor"}
        if "slower" not in self.decisions:
            self.decisions.make(
                "slower",
                {
                    kind: {str(own.number): self._timing(self._slowed(own, section)) for own in results}
                    for kind, section in kinds.items()
                },
            )
        return {
            kind: [Timing(*figures[str(own.number)]) for own in results]
            for kind, figures in self.decisions["slower"].items()
        }

    def _slowed(self, result: Judged, section: str) -> Config:
        config = self.candidates[result.number].config
        return config.replace(NOWHERE | scaled(config, 2.0, [section]))
