"""See whether an environment keeps what it promises: `python scripts/check_env.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.check_env import main

if __name__ == "__main__":
    main()
