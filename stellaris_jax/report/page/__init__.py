"""One self-contained page on runs that belong together: `stellaris-jax report`."""
