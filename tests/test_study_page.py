"""The page of a study: its README.md as a page that needs nothing but itself."""

from __future__ import annotations

import base64
import io
import re
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from browser import browser, find
from commands import REPOSITORY, call
from pages import Reader
from run_dirs import make_run

SOURCE = """\
# A study of *two* things

> **Note.** Made anew, see [the rest](more/rest.md#end) & <script>alert(1)</script>.

![what came](figure.png) and ![gone](gone.png)

    python -m study --all

| claim | here |
|---|---|
| `a` \\| c | **holds** |
| short |

- one
  goes on
- [two](javascript:alert(1)), [three](https://example.org/a_b_c)
<!-- hidden -->
"""


def study(path: Path) -> Path:
    path.mkdir()
    (path / "README.md").write_text(SOURCE)
    noise = np.random.default_rng(0).random((300, 2400, 3))
    matplotlib.image.imsave(path / "figure.png", noise)
    (path / "gone.png").write_bytes(b"no picture")
    return path


def test_page_of_a_study(tmp_path: Path) -> None:
    place = study(tmp_path / "study")
    done = call("report.py", place)
    assert (done.returncode, done.stdout.strip()) == (0, str(place / "report.html")), done.stderr
    source = (place / "report.html").read_text()
    page = Reader(place / "report.html")
    assert (
        "<em>two</em>" in source and "<strong>Note.</strong>" in source and "<pre>python -m study --all</pre>" in source
    )
    assert page.links == ["more/rest.md#end", "", "https://example.org/a_b_c"]
    assert source.count("<script>") == 1 and "hidden" not in page.words and "[gone]" in page.words
    (data,) = re.findall(r'<img alt="what came" src="data:image/png;base64,([^"]+)">', source)
    pixels = matplotlib.image.imread(io.BytesIO(base64.b64decode(data)))
    assert pixels.shape[1] <= 1400 and pixels.shape[1] / pixels.shape[0] == pytest.approx(8, rel=0.02)
    (rows,) = page.tables
    assert rows[0] == ["claim", "here"] and rows[2] == ["short", ""] and rows[1] == ["a | c", "holds"]
    assert "one goes on" in page.words


def test_links_lead_from_where_the_page_is(tmp_path: Path) -> None:
    place = study(tmp_path / "study")
    call("report.py", place, "--out", tmp_path / "page.html")
    assert Reader(tmp_path / "page.html").links[0] == "study/more/rest.md#end"


def test_runs_come_before_a_readme(tmp_path: Path) -> None:
    """A directory of runs with notes beside them is one of runs."""
    make_run(tmp_path / "runs" / "a", rounds=8)
    make_run(tmp_path / "runs" / "b", {"system": {"name": "async"}, "env": {"name": "x"}}, rounds=8)
    (tmp_path / "runs" / "README.md").write_text("# Notes\n")
    call("report.py", tmp_path / "runs")
    assert "Results" in Reader(tmp_path / "runs" / "report.html").headings


@pytest.mark.skipif(find() is None, reason="needs Chromium (Debian's package chromium)")
def test_our_largest_study_in_a_browser(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    assert call("report.py", REPOSITORY / "results" / "stellaris", "--out", page).returncode == 0
    assert page.stat().st_size < 2_000_000
    with browser(tmp_path / "profile") as window:
        for width, dark in ((390, True), (1280, False)):
            window.open(page, width, 800, dark)
            assert window.evaluate("document.documentElement.scrollWidth") <= width
            seen = window.evaluate("[...document.querySelectorAll('img')].map(e => e.naturalWidth * e.complete)")
            assert len(seen) >= 10 and min(seen) > 300
        assert window.told == [] and set(window.requested) >= {page.resolve().as_uri()}
        assert not [url for url in window.requested if not url.startswith(("file:", "data:"))]
