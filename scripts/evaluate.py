"""Evaluate the policy of a run, or film it: `python scripts/evaluate.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.evaluate import main

if __name__ == "__main__":
    main()
