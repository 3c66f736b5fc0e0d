"""The site: `make docs` builds it into `docs/_build/html`, and runs its notebooks. Nothing is fetched from anywhere."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS), str(DOCS.parent)]

from stellaris_jax import __version__  # noqa: E402

project = "stellaris_jax"
author = "The stellaris_jax authors"
copyright = f"{author}, Apache-2.0"
release = version = __version__

extensions = ["myst_nb", "sphinx_copybutton"]
nb_execution_mode = "force"  # notebooks are stored without what their cells give
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 300
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "generator"]
suppress_warnings = ["myst.header"]  # files of the repository begin where they like
highlight_language = "text"
smartquotes_action = "qe"  # options have two hyphens
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

html_theme = "furo"
html_title = "stellaris_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Pages that are made are written before any is read."""
    from generator import repository, write

    write(DOCS)
    app.connect("source-read", repository.on_site)
