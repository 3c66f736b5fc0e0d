"""Foretell duration, staleness, waste and cost without training: `python scripts/plan.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.plan import main

if __name__ == "__main__":
    main()
