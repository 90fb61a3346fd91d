"""Settings of the documentation: ``make docs``."""

from __future__ import annotations

import importlib.metadata

from sphinx.application import Sphinx

project = "owlrl"
author = "The owlrl authors"
copyright = "2026, The owlrl authors"
release = version = importlib.metadata.version("owlrl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.mathjax"]
exclude_patterns = ["_build", "_*.md"]  # _*.md are pieces that pages include
html_theme = "furo"
html_title = f"owlrl {release}"
pygments_style = "default"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

# A single backtick in a docstring is a link, and a link that leads nowhere is an error.
default_role = "any"
nitpicky = True

autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    "show-inheritance": True,
    # What a class has from a base that is not on the page; not what it has from these.
    "inherited-members": (
        "BaseException, CrossingEnv, Env, Linear, Mapping, MiniGridEnv, Module, PendulumEnv, Protocol, "
        "VectorEnv, Wrapper, object"
    ),
}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
python_use_unqualified_type_names = True

# Other projects' inventories are on the net, and the build needs no net: names of theirs do not link.
nitpick_ignore_regex = [
    ("py:class", "Env|Figure|Tensor"),
    # What a package does not export may stand in a signature; it has no place to link to.
    ("py:class", r"owlrl(\.\w+){3,4}|owlrl\.autosave\.Counter"),
    (
        "any|py:.*",
        r"(torch|np|numpy|nn|abc|collections|io|os|pathlib|typing|typing_extensions|gymnasium|minigrid|safetensors|"
        r"stable_baselines3)(\..+)?",
    ),
]


def _keep_whole(app: object, what: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Keep napoleon from reading "Shape: (B, A)." in a property's first line as a type and a text."""
    if what == "property":
        lines[:0] = ["..", ""]  # an empty comment: a first line without a colon


def _readable_default(
    app: object,
    what: str,
    name: str,
    obj: object,
    options: object,
    signature: str | None,
    returns: str | None,
) -> tuple[str | None, str | None]:
    """Write a dataclass field's ``<factory>`` as ``...``: Sphinx cannot parse the former."""
    return signature and signature.replace("<factory>", "..."), returns


def _public_bases(app: object, name: str, obj: type, options: object, bases: list[type]) -> None:
    """Show the public bases behind a private one, since what it gives is shown with the class itself."""
    while hidden := [base for base in bases if "._" in getattr(base, "__module__", "")]:
        at = bases.index(hidden[0])
        bases[at : at + 1] = [base for base in hidden[0].__bases__ if base not in bases]


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", _keep_whole, priority=400)
    app.connect("autodoc-process-signature", _readable_default)
    app.connect("autodoc-process-bases", _public_bases)
