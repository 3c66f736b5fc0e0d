"""List and compare runs, and clear up: `python scripts/runs.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.runs import main

if __name__ == "__main__":
    main()
