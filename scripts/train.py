"""Train an agent, or sweep over settings: `python scripts/train.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.train import main

if __name__ == "__main__":
    main()
