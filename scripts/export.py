"""Write the policy of a run to a file: `python scripts/export.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.export import main

if __name__ == "__main__":
    main()
