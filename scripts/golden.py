"""Train small configurations and compare what they compute, to the bit: `python scripts/golden.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from golden_runs import main

if __name__ == "__main__":
    sys.exit(main())
