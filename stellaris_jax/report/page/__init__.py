"""Self-contained page on one run or on several: `stellaris-jax report`."""
