"""Choice of a system, a correction and a learning rate for a task and its delays: `stellaris-jax choose`."""
