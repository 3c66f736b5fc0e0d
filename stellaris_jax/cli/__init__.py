"""The commands: each module is one of `stellaris-jax <command>`, and of `scripts/`."""
