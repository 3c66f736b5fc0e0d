"""Write one page on runs that belong together: `python scripts/report.py --help`."""

from __future__ import annotations

from stellaris_jax.cli.report import main

if __name__ == "__main__":
    main()
