"""Train an agent: `python scripts/train.py [group=choice] [key=value] ...`; `--help` explains every key."""

from __future__ import annotations

import os
import sys

from stellaris_jax.cli import main
from stellaris_jax.config import Config


def task(config: Config) -> None:
    # Imported when a configuration is known to be right, so that mistakes and --help answer at once.
    from stellaris_jax.run import Interrupted, train
    from stellaris_jax.signals import Abandoned

    try:
        train(config)
    except Interrupted as stop:
        sys.exit(128 + stop.signum)
    except Abandoned as stop:
        sys.stdout.flush()
        os._exit(128 + stop.signum)  # an orderly end would wait for what is still being computed


if __name__ == "__main__":
    main(task)
