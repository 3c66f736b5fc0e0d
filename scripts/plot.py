"""Draw the curves of runs, or a timeline: `python scripts/plot.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.plot import main

if __name__ == "__main__":
    main()
