"""Redo a paper's evaluation: `python scripts/reproduce.py --help`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from studies.main import main

if __name__ == "__main__":
    main()
