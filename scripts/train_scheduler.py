"""Train a scheduler of actors: `python scripts/train_scheduler.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.schedule import main

if __name__ == "__main__":
    main()
