"""Trains a scheduler of actors (MinionsRL, AAAI'24) on a training job, and compares it with fixed numbers of actors.

stellaris-jax schedule env=gymnax/cartpole --out schedulers/cartpole.npz
stellaris-jax schedule env=gymnax/Catch-bsuite scaling.target=0.9 --start schedulers/cartpole.npz \
    --episodes 16 --out schedulers/catch.npz
stellaris-jax train env=gymnax/Catch-bsuite scaling=minionsrl scaling.target=0.9 \
    scaling.options.scheduler=schedulers/catch.npz

All other arguments override the job's configuration, as for `stellaris-jax train`. scaling.target is the return that
the job should reach, and scaling.budget the dollars that it may cost.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from stellaris_jax.base.commands import named_modules
from stellaris_jax.base.errors import ConfigError
from stellaris_jax.base.outputs import check_output
from stellaris_jax.base.registry import search_folder
from stellaris_jax.cli import program
from stellaris_jax.cli.working import working


@program.entry
def main(argv: Sequence[str]) -> None:
    """Run the command with these arguments, by default those of the process."""
    parser = program.Parser("schedule", __doc__)
    parser.add_argument("job", nargs="*", help="overrides of the job's configuration")
    parser.add_argument("--out", type=Path, required=True, help="file to write the scheduler to")
    parser.add_argument("--start", type=Path, help="scheduler to fine-tune")
    some, any_ = program.at_least(1), program.at_least(0)
    parser.add_argument("--episodes", type=some, default=100, metavar="N", help="jobs to learn from (default 100)")
    parser.add_argument("--compare", type=any_, default=16, metavar="N", help="jobs to compare on (default 16; 0: no)")
    parser.add_argument("--seed", type=program.seed, default=0, metavar="S", help="first seed (default 0)")
    arguments = parser.parse_mixed(argv)
    # Imported late, so that --help is answered at once.
    from stellaris_jax.execute.run import enable_compile_cache
    from stellaris_jax.many.scheduler_training import constant, random, run_jobs, scheduled, train_scheduler
    from stellaris_jax.telemetry.format import significant
    from stellaris_jax.timeline.scaling.scheduler import Scheduler

    search_folder(named_modules(arguments.job))
    enable_compile_cache()
    check_output("--out", arguments.out)
    if arguments.out.exists():
        raise ConfigError(f"--out={arguments.out} exists; name another file.")
    start = Scheduler.load(arguments.start, "--start") if arguments.start else None
    begin = time.perf_counter()
    with working(f"compiling, then training a scheduler on {arguments.episodes} jobs"):
        scheduler, env = train_scheduler(arguments.job, arguments.episodes, arguments.seed, start)
    scheduler.save(arguments.out)
    print(f"trained in {time.perf_counter() - begin:.0f} s: {arguments.out}")
    if not arguments.compare:
        return
    most = env.limits.maximum
    rivals = {f"{n} actors": constant(n) for n in sorted({1, most // 4, most // 2, most} - {0})}
    print(f"{'':14}{'seconds':>12}{'dollars':>12}{'rounds':>12}{'return':>12}{'reached':>12}{'objective':>14}")
    for name, choose in {"scheduler": scheduled(scheduler), "random": random(most), **rivals}.items():
        with working(f"comparing {name} on {arguments.compare} jobs"):
            outcome = run_jobs(env, choose, arguments.compare, seed=(10_000 + arguments.seed) % 2**32)
        means = [figure.mean() for figure in outcome]
        reached = (outcome.reward >= env.scales.target).mean()
        print(
            f"{name:14}{means[0]:12.0f}{means[1]:12.4f}{means[2]:12.1f}{significant(means[3]):>12}{reached:12.0%}{means[4]:14.1f}",
            flush=True,
        )
