"""`python -m stellaris_jax`, where `stellaris-jax` is not on the path."""

from __future__ import annotations

from stellaris_jax.cli.main import main

if __name__ == "__main__":
    main()
