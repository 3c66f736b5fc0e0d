"""Candidates of a new choice: composed from a space and the user's overrides, and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stellaris_jax.base.errors import ConfigError
from stellaris_jax.config.compose import compose_configs
from stellaris_jax.config.schema import LAST_SEED
from stellaris_jax.config.tree import Config
from stellaris_jax.execute.loading import checked
from stellaris_jax.many.choose.arms import Arm, Candidate, Space, one_learner, rates
from stellaris_jax.many.choose.files import FRESH, Options
from stellaris_jax.many.forecast import plannable

POINTS = 27
"""Evaluations of a run, unless the user sets `evaluation.points`: rungs are at a ninth and a third of them."""
BILLING = {"system.learner_billing": "serverless", "system.actor_billing": "serverful"}
"""Billing of all candidates, unless the user sets it."""
COMMON = {"evaluation.points": POINTS, **BILLING}
"""Settings of all candidates, unless the user sets them: rungs need evaluations, and dollars one way of billing."""
REFUSED: Mapping[str, str] = {
    "system": "the system is what choose chooses; --systems NAME,NAME restricts it",
    "system.rule": "a file of --space names rules, as in `my rule: [system.rule=my_rule]`",
    "num_seeds": "--seeds N and --fresh-seeds N count seeds",
    "resume": "--resume DIR continues a choice",
    "run.dir": "--dir DIR names the directory",
    "executor": "candidates are simulated; --live DIR takes delays from a live run",
    "trace": "--live DIR takes delays from a live run",
    "sweep": "choose makes its own candidates",
    "engine.distributed": "many runs share this machine",
}
"""Keys that a choice does not accept, each with the reason."""
REFUSED_OF_SPACES: Mapping[str, str] = {
    **{key: reason for key, reason in REFUSED.items() if not key.startswith("system")},
    "seed": "candidates are compared on the same seeds",
}
"""Keys that a system or correction of a space does not accept."""


def candidates(
    overrides: Sequence[str], space: Space, options: Options, config_dir: str | None = None
) -> tuple[list[Candidate], dict[str, str]]:
    """Candidates in the order in which they are tried, and the systems that cannot run here, each with the reason.

    Systems without corrections come before those with one, and learning rates close to the configured one first.

    Args:
      overrides: the user's overrides: the task, its delays, the number of learners.
      space: what is varied.
      options: options of the choice.
      config_dir: a directory laid out like `configs/`, with further choices.

    Raises:
      ConfigError: an override is not possible, or no system can run.
    """
    given = {key_of(line): line.partition("=")[2] for line in overrides}
    own = [f"{key}={value}" for key, value in COMMON.items() if key not in given]
    common = [*overrides, *own, f"num_seeds={options.seeds}", "run.loggers=[]", "run.progress=false"]
    configs: dict[Arm, Config] = {}
    refused: dict[str, str] = {}
    for arm in space.arms():
        for line in arm.overrides:
            if reason := REFUSED_OF_SPACES.get(key_of(line)):
                raise ConfigError(f"{arm.name}: {line} is not possible in a space: {reason}.")
        other = next((line for line in arm.overrides if _contradicts(line, given)), None)
        if other is not None and not arm.baseline:
            refused[arm.name] = f"it has {other}, and {key_of(other)}={given[key_of(other)]} is given."
            continue
        try:
            configs[arm] = _config(arm, common, config_dir)
        except ConfigError as error:
            refused[arm.name] = str(error)
    if not configs:
        raise ConfigError(next(iter(refused.values())))
    if len(set(refused.values())) == 1 and len(configs) < 2:
        raise ConfigError(next(iter(refused.values())))
    last = max(config.seed for config in configs.values()) + FRESH + 2 * options.fresh_seeds - 1
    if options.seeds > FRESH or last > LAST_SEED:
        raise ConfigError(
            f"--seeds must be at most {FRESH}, and the last seed, seed + {FRESH} + 2 x --fresh-seeds - 1 = {last}, "
            f"at most {LAST_SEED}: seeds that search and seeds that judge differ."
        )
    tried: dict[tuple[Arm, float], Candidate] = {}
    places = [(corrected, factor) for corrected in (False, True) for factor in rates(space.learning_rates)]
    for corrected, factor in places:
        for arm, config in configs.items():
            if arm.corrected != corrected:
                continue
            rate = float(f"{factor * config.algorithm.learning_rate:.3g}")
            if (arm, rate) not in tried:  # factors may be the same in so many digits
                tried[arm, rate] = Candidate(arm, rate, config.replace({"algorithm.learning_rate": rate}))
    return list(tried.values()), refused


def refuse(overrides: Sequence[str]) -> None:
    """Raise ConfigError for an override that a choice does not accept."""
    for line in overrides:
        if reason := REFUSED.get(key_of(line)):
            raise ConfigError(f"{line} is not possible: {reason}.")


def key_of(line: str) -> str:
    """Key of an override."""
    return line.lstrip("+").partition("=")[0]


def _contradicts(line: str, given: Mapping[str, str]) -> bool:
    """Whether an override of an arm is another value of a key that the user has given."""
    return given.get(key_of(line), line.partition("=")[2]) != line.partition("=")[2]


def _config(arm: Arm, common: Sequence[str], config_dir: str | None) -> Config:
    """Checked configuration of an arm, whose overrides come last. Raises ConfigError if it cannot run or be planned."""
    (config,) = compose_configs([[*common, *arm.overrides]], config_dir)
    if arm.one_learner:
        config = config.replace(one_learner(config))
    if not config.evaluation.points or not config.evaluation.episodes:
        raise ConfigError("evaluation.points and evaluation.episodes must not be 0: a choice compares returns.")
    plannable(config)
    return checked(config)


def with_room(config: Config, learners: int) -> Config | None:
    """Checked configuration on a platform with room for so many learners; `None` if it cannot run."""
    platform = config.platform
    machines = max(platform.gpus, -(-learners // platform.slots_per_gpu))
    extra = -(-machines * config.prices.learner_vms // platform.gpus)
    try:
        return checked(config.replace({"platform.gpus": machines, "prices.learner_vms": extra}))
    except ConfigError:
        return None
