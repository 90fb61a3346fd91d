"""Settings of the documentation: ``make docs``."""

from __future__ import annotations

import importlib.metadata
import inspect
import pydoc
import re
import sys
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.ext import viewcode
from sphinx.util.typing import stringify_annotation

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.notebook_page import notebook_page

project = "owlrl"
author = "The owlrl authors"
copyright = "2026, The owlrl authors"
release = version = importlib.metadata.version("owlrl")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_build", "_*.md"]  # _*.md are pieces that pages include
html_theme = "furo"
html_title = f"owlrl {release}"
html_logo = html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#332288", "color-brand-content": "#332288"},
    "dark_css_variables": {"color-brand-primary": "#a99fe0", "color-brand-content": "#a99fe0"},
}
pygments_style = "default"

myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
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
        "BaseException, CrossingEnv, Env, Linear, Mapping, MiniGridEnv, Module, ModuleList, PendulumEnv, "
        "Protocol, VectorEnv, Wrapper, dict, object"
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
    ("py:class", "ArrayLike|Env|Figure|Module|Tensor"),
    # What a package does not export may stand in a signature; it has no place to link to.
    ("py:class", r"owlrl(\.\w+){3,4}|owlrl\.autosave\.Counter"),
    (
        "any|py:.*",
        r"(torch|np|numpy|nn|abc|collections|io|os|pathlib|typing|typing_extensions|gymnasium|minigrid|safetensors|"
        r"stable_baselines3)(\..+)?",
    ),
]


ARRAY_LIKE = stringify_annotation(ArrayLike, "smart")
ARRAY = re.compile(r"~numpy\.ndarray\[tuple\[~typing\.Any, \.\.\.\], ~numpy\.dtype\[[^]]*\]\]")


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
    """Write ``<factory>`` as ``...``, which Sphinx can parse, and numpy's types of arrays briefly."""

    def short(text: str | None) -> str | None:
        text = text and text.replace(ARRAY_LIKE, "ArrayLike")
        return text and ARRAY.sub("~numpy.ndarray", text)

    return short(signature and signature.replace("<factory>", "...")), short(returns)


def _public_bases(app: object, name: str, obj: type, options: object, bases: list[type]) -> None:
    """Show the public bases behind a private one, since what it gives is shown with the class itself."""
    while hidden := [base for base in bases if "._" in getattr(base, "__module__", "")]:
        at = bases.index(hidden[0])
        bases[at : at + 1] = [base for base in hidden[0].__bases__ if base not in bases]


def _by_object(app: Sphinx, env: Any, node: Any, content: Any) -> Any:
    """Lead a name to where its object is documented: owlrl.heads.multihead.MultiHeadQ to owlrl.MultiHeadQ."""
    target = node.get("reftarget", "")
    domain = env.domains.python_domain
    thing = pydoc.locate(target) if target.startswith("owlrl.") else None
    if thing is None or not node.get("refdoc"):
        return None
    name = target.rpartition(".")[2]
    for known in domain.objects:
        if known.rpartition(".")[2] == name and known != target and pydoc.locate(known) is thing:
            return domain.resolve_xref(env, node["refdoc"], app.builder, "obj", known, node, content)
    return None


def _fill_in_notebook(app: Sphinx, docname: str, source: list[str]) -> None:
    """Show a notebook with its stored outputs where a page of docs/notebooks only names it."""
    if docname.startswith("notebooks/"):
        path = Path(app.srcdir).parent / "examples" / f"{Path(docname).name}.ipynb"
        app.env.note_dependency(path, docname=docname)
        source[0] = notebook_page(path)


def _room(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Give pages with wide tables the room of the list of contents."""
    if page.startswith("results/") or page in ("paper", "deviations"):
        app.add_css_file("wide.css", priority=900)


def _source_of_property(app: Sphinx, module: str, name: str) -> str | None:
    """The module of a property, which viewcode does not see."""
    thing = pydoc.locate(f"{module}.{name}")
    return thing.fget.__module__ if isinstance(thing, property) and thing.fget else None


def _source_of_inherited(app: Sphinx, doctree: Any) -> None:
    """Give what a class has from a base its [source] too: viewcode looks in the class's own module only."""
    for signature in list(doctree.findall(addnodes.desc_signature)):
        if any(isinstance(part, viewcode.viewcode_anchor) for part in signature):
            continue
        thing = pydoc.locate(f"{signature.get('module')}.{signature.get('fullname')}")
        thing = inspect.unwrap(getattr(thing, "fget", None) or thing)  # of a property
        if inspect.isroutine(thing) and str(getattr(thing, "__module__", "")).startswith("owlrl"):
            at_home = addnodes.desc_signature("", "", module=thing.__module__, fullname=thing.__qualname__)
            viewcode.doctree_read(app, addnodes.desc("", at_home, domain="py"))
            signature += list(at_home)


def _lead_back(app: Sphinx, page: str, template: str, context: dict[str, Any], doctree: object) -> None:
    """Let [docs] beside the source lead to where it is documented: viewcode knows one name per module."""
    if not page.startswith("_modules/owlrl"):
        return
    module = page.removeprefix("_modules/").replace("/", ".")
    documented = app.env.domains.python_domain.objects

    def correct(link: re.Match[str]) -> str:
        guess = link["name"].split(".")
        for start in range(1, len(guess)):  # the module part may be the package's or the module's own
            own = ".".join(guess[start:])
            thing = pydoc.locate(f"{module}.{own}")
            for name, entry in documented.items():
                if thing is not None and name.endswith(f".{own}") and pydoc.locate(name) is thing:
                    return (
                        f"{link['before']}{context['pathto'](entry.docname)}#{entry.node_id}{link['after']}"
                    )
        return ""

    context["body"] = re.sub(
        r'(?P<before><a class="viewcode-back" href=")[^"#]*#(?P<name>[^"]*)(?P<after>">.*?</a>)',
        correct,
        context["body"],
    )


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("missing-reference", _by_object)
    app.connect("viewcode-follow-imported", _source_of_property)
    app.connect("doctree-read", _source_of_inherited, priority=600)  # after viewcode
    app.connect("source-read", _fill_in_notebook)
    app.connect("html-page-context", _room)
    app.connect("html-page-context", _lead_back)
    app.connect("autodoc-process-docstring", _keep_whole, priority=400)
    app.connect("autodoc-process-signature", _readable_default)
    app.connect("autodoc-process-bases", _public_bases)
