"""Redo a paper's evaluation: `python scripts/reproduce.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.reproduce import main

if __name__ == "__main__":
    main()
