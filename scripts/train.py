"""Train an agent: `python scripts/train.py [group=choice] [key=value] ...`; `--help` explains every key."""

from __future__ import annotations

import sys

from stellaris_jax.cli import main
from stellaris_jax.config import Config


def task(config: Config) -> None:
    # Imported when a configuration is known to be right, so that mistakes and --help answer at once.
    from stellaris_jax.run import Interrupted, train

    try:
        train(config)
    except Interrupted as stop:
        sys.exit(128 + stop.signum)


if __name__ == "__main__":
    main(task)
