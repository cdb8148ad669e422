"""How Sphinx builds the site: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from sphinx.ext.napoleon import GoogleDocstring

import pycoll

project = "pycoll"
version = release = pycoll.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_argparse_cli",
]
html_theme = "furo"
html_title = f"pycoll {version}"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_copyright = False

highlight_language = "none"  # of a block that names none

myst_heading_anchors = 3  # [text](page.md#heading), as GitHub has it
smartquotes = False  # an option begins with two hyphens
default_role = "py:obj"  # `name` in a docstring
nitpicky = True  # a reference to nothing is an error ...
nitpick_ignore_regex = [  # ... unless it may be no reference, or one to what is not documented:
    ("py:class", r".*"),  # types in annotations
    ("py:obj", r"(?!pycoll\.).*"),  # code that a docstring quotes
]
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
# Google's style has a type before a colon there; here it is the beginning of a sentence.
GoogleDocstring._parse_attribute_docstring = GoogleDocstring._consume_to_end
