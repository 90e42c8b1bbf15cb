"""Sphinx settings. `python -m sphinx -W --keep-going -b html docs docs/_build/html`."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import tightz

project = "tightz"
author = "The tightz developers"
copyright = "The tightz developers"
version = release = tightz.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "reference"]
exclude_patterns = ["_build"]
source_suffix = {".rst": "restructuredtext", ".md": "markdown"}

myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 72
python_use_unqualified_type_names = True
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True

html_theme = "pydata_sphinx_theme"
html_math_renderer = "mathml"
html_title = f"tightz {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_context = {"default_mode": "auto"}
html_show_sourcelink = False
html_copy_source = False
html_sidebars: dict[str, list[str]] = {"install": [], "gallery": [], "architecture": []}
html_theme_options = {
    "logo": {"text": "tightz"},
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "tango",
    "pygments_dark_style": "github-dark",
}
