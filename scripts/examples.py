"""Copy the examples: `python scripts/examples.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.examples import main

if __name__ == "__main__":
    main()
