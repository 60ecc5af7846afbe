"""Sphinx: how the documentation site is built (``make docs``; every warning is an error)."""

from pathlib import Path

from sphinx.application import Sphinx

import vtensor

project = "vtensor"
author = "the vtensor authors"
copyright = "the vtensor authors, Apache-2.0"
release = vtensor.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = "vtensor"
exclude_patterns = ["_build"]
myst_heading_anchors = 3
autodoc_typehints = "none"  # they stand in the signatures
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
nitpick_ignore = [(f"py:{kind}", "torch.OutOfMemoryError") for kind in ("exc", "class")]

# Pages that are documents of the repository, with their links as they are here.
_ROOT = Path(__file__).resolve().parent.parent
_DOCUMENTS = {"design": "DESIGN.md", "planner": "lgm/DESIGN.md"}


def _read(_app: Sphinx, page: str, source: list[str]) -> None:
    if page in _DOCUMENTS:
        text = (_ROOT / _DOCUMENTS[page]).read_text()
        source[0] = text.replace("(lgm/DESIGN.md)", "(planner.md)").replace("(docs/", "(")


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)
