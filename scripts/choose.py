"""Choice of a system, a correction and a learning rate: `python scripts/choose.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.choose import main

if __name__ == "__main__":
    main()
