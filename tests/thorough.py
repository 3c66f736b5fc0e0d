"""Which tests `make test` leaves to CI, chosen by how long they take: `python tests/thorough.py JUNIT.xml`.

The file is of a whole run, `make test ARGS="-m 'not slow' --junitxml=JUNIT.xml"`; `thorough.txt` is written anew.
"""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from itertools import groupby
from pathlib import Path

LIST = Path(__file__).with_suffix(".txt")
"""Ids of tests, as pytest writes them."""
LONG, ONE_OF_ALL = 2.0, 3.0
"""Seconds from which on a test is left to CI; the quickest of a function's cases stays below so many."""
KEPT = ("tests/test_live_cluster.py::test_functions_are_killed[gymnax/cartpole-5]",)
"""Tests that stay however long they take: processes of live runs are killed nowhere else in the ordinary suite."""


def listed() -> frozenset[str]:
    """The ids of the list."""
    return frozenset(LIST.read_text(encoding="utf-8").splitlines())


def chosen(seconds: dict[str, float]) -> list[str]:
    """Ids of the tests that take long.

    >>> chosen({"a[0]": 4.0, "a[1]": 3.0, "b": 9.0, "c": 0.1})
    ['a[0]', 'b']
    """
    found = []
    for _, tests in groupby(sorted(seconds), key=_function):
        first, *others = sorted(tests, key=lambda test: seconds[test])
        found += [test for test in others if seconds[test] > LONG]
        found += [first] if seconds[first] > ONE_OF_ALL else []
    return sorted(set(found) - {*KEPT})


def _function(test: str) -> str:
    return test.partition("[")[0]


def _seconds(path: Path) -> dict[str, float]:
    cases = ET.parse(path).getroot().iter("testcase")
    return {
        f"{one.get('classname', '').replace('.', '/')}.py::{one.get('name')}": float(one.get("time", 0))
        for one in cases
    }


if __name__ == "__main__":
    LIST.write_text("".join(f"{test}\n" for test in chosen(_seconds(Path(sys.argv[1])))), encoding="utf-8")
