"""Checks an environment: its declared spaces and, by random actions, its behaviour.

stellaris-jax check-env SUITE/NAME [KEY=VALUE ...]

The settings are those of a training, such as env.kwargs.max_episode_steps=200 or env.frame_stack=4.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence

from stellaris_jax.cli import program
from stellaris_jax.cli.working import working


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("check-env", __doc__)
    parser.add_argument("env", metavar="SUITE/NAME", help="the environment, such as gymnasium/my_package:MyEnv-v0")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE", help="settings")
    arguments = parser.parse_mixed(argv)

    from stellaris_jax.base.commands import as_override, named_modules
    from stellaris_jax.base.registry import search_folder
    from stellaris_jax.envs.check import CheckWarning, check_env
    from stellaris_jax.envs.ranges import range_lines
    from stellaris_jax.envs.registry import from_config
    from stellaris_jax.execute.loading import load_config

    search_folder(named_modules([f"env={arguments.env}", *arguments.overrides]))
    config = load_config([as_override("env", arguments.env), *arguments.overrides])
    env = from_config(config.env)
    with warnings.catch_warnings(record=True) as noticed:
        warnings.simplefilter("always", CheckWarning)
        with working(f"playing {env.name} with random actions"):
            report = check_env(env)
    for warning in noticed:
        print(f"warning: {warning.message}", file=sys.stderr)
    print(f"{env.name}: no fault found")
    observed = env.observation_space
    print(f"{observed.dtype} observations of shape {observed.shape}")
    print(f"actions of {env.action_space}")
    print("\n".join(range_lines(env, report, config.env)))
    if env.max_episode_steps is None:
        limit = config.evaluation.episode_limit
        print(f"episodes without a time limit; evaluations cut them at evaluation.episode_limit={limit}")
    else:
        print(f"episodes of at most {env.max_episode_steps:,} steps")
