"""Search for better settings: `python scripts/tune.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.tune import main

if __name__ == "__main__":
    main()
