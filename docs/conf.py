"""Sphinx: how the documentation site is built (``make docs``; every warning is an error)."""

import re
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
_DOCUMENTS = {
    "design": "DESIGN.md",
    "design_gpu": "kernels/cuda/DESIGN.md",
    "design_harmony": "vtensor/harmony/DESIGN.md",
    "design_iteration": "vtensor/planning/DESIGN.md",
    "design_planner": "lgm/DESIGN.md",
    "design_recipes": "kernels/recipes/DESIGN.md",
}
_PAGES = {path: page for page, path in _DOCUMENTS.items()}


def _read(_app: Sphinx, page: str, source: list[str]) -> None:
    if page in _DOCUMENTS:
        document = _ROOT / _DOCUMENTS[page]

        def led(link: re.Match[str]) -> str:
            path = (document.parent / link[1]).resolve().relative_to(_ROOT).as_posix()
            return f"]({_PAGES[path]}.md)" if path in _PAGES else f"]({path.removeprefix('docs/')})"

        source[0] = re.sub(r"\]\(([\w./]+\.md)\)", led, document.read_text())


def setup(app: Sphinx) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _read)
