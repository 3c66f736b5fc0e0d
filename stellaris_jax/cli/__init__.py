"""Commands: each module is one `stellaris-jax <command>`, and one script of `scripts/`."""
