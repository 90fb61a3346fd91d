"""The code in the README and in the documentation's pages runs as it stands there.

In the default run a `learn` of 10,000 steps or more is a shorter one, and so is the README's SAC;
``make slow`` runs the pages that have one as they stand.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import owlrl

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("**/*.md"))]
# A block's language is one of these, or a directive of the documentation in braces.
RUN = "python"
RUN_AS_PATCHED = "diff"
NOT_CODE = {"bash", "bibtex", "console", "json", "text", "toml", "yaml"}
NO_RUN = re.compile(r"<!--\s*no-run:\s*\S.*?-->", re.DOTALL)
# The next block is run where this package is installed, by tests/examples/test_recipes.py.
NEEDS = re.compile(r"<!--\s*needs:\s*(\w+)\s*-->")
OPTIONAL = ("tianshou", "torchrl")
LONG = re.compile(r"\blearn\(\d\d+_\d{3}\)")
SHORTER = "learn(3_000)"
WATCHED = ROOT / "docs" / "watch.md"  # shows what is seen at certain steps: always as it stands


def tokens(text: str) -> list[Token]:
    return MarkdownIt().parse(text)


def after_patch(diff: str) -> str:
    """What stands there once a diff has been applied; the line numbers are those of the diff."""
    kept = ["" if line.startswith(("-", "@@", "+++")) else line[1:] for line in diff.splitlines()]
    return "\n".join(kept) + "\n"


def blocks(text: str, have: str | None = None) -> list[tuple[int, str]]:
    """Line and code of each block to be run, or an error for a block that evades being run.

    Of the blocks that need a package, only those that need ``have`` are among them.
    """
    found = []
    exempt, needed = False, None
    for token in tokens(text):
        if token.type == "code_block":
            raise ValueError(f"line {token.map[0] + 1}: indented code is not run; write a ``` block")
        if token.type != "fence":
            exempt = token.type == "html_block" and NO_RUN.search(token.content) is not None
            match = NEEDS.search(token.content) if token.type == "html_block" else None
            needed = match and match.group(1)
            continue
        language, line = token.info.strip(), token.map[0] + 2
        if exempt and language not in {RUN_AS_PATCHED, "text"}:
            raise ValueError(f"line {line}: a {language} block cannot be exempt from being run")
        if needed and (language != RUN or needed not in OPTIONAL):
            raise ValueError(f"line {line}: a {language} block that needs {needed!r} is never run")
        if language == RUN:
            found += [(line, token.content)] if needed in (None, have) else []
        elif language == RUN_AS_PATCHED and not exempt:
            found.append((line, after_patch(token.content)))
        elif language not in NOT_CODE | {RUN_AS_PATCHED} and not language.startswith("{"):
            raise ValueError(f"line {line}: a block in {language!r}; expected python, diff or {NOT_CODE}")
        elif language.startswith("{code") or "python" in language:
            raise ValueError(f"line {line}: write ```python, so that the code is run")
        exempt, needed = False, None
    return found


def run(page: Path, text: str, have: str | None = None, *, shorter: bool = False) -> dict[str, object]:
    """Run a page's blocks in order in one namespace; a traceback names the page's own line.

    A block with a text block right below it prints that, up to the numbers. With ``shorter`` what learns long
    learns less.
    """
    text = LONG.sub(SHORTER, text) if shorter else text
    namespace: dict[str, object] = {"__name__": "__main__"}
    shown = shown_below(text)
    for line, code in blocks(text, have):
        padded = "\n" * (line - 1) + code
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(compile(padded, str(page), "exec", dont_inherit=True), namespace)
        if line in shown:
            found, expected = without_numbers(printed.getvalue()), without_numbers(shown[line])
            if shorter:  # an episode may be longer or shorter then
                found, expected = (re.sub(r"\[#(, #)*\]", "[#]", each) for each in (found, expected))
            assert found == expected, f"{page}, line {line}"
    return namespace


def shown_below(text: str) -> dict[int, str]:
    """The text blocks right below a block that is run, by the line of the latter's code."""
    found = tokens(text)
    return {
        block.map[0] + 2: after.content
        for block, after in itertools.pairwise(found)
        if block.type == after.type == "fence"
        and block.info.strip() in {RUN, RUN_AS_PATCHED}
        and after.info.strip() == "text"
    }


def named_targets(text: str) -> set[str]:
    """What a page tells the reader to ``make``, in blocks and in inline code."""
    code = [token.content for token in tokens(text) if token.type == "fence"]
    code += [
        child.content
        for token in tokens(text)
        for child in token.children or ()
        if child.type == "code_inline"
    ]
    return {name for piece in code for name in re.findall(r"\bmake +([a-z][\w-]*)", piece)}


def make_targets(makefile: str) -> set[str]:
    return set(re.findall(r"^([a-z][\w-]*):(?!=)", makefile, re.MULTILINE))


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, page.read_text(encoding="utf-8"), shorter=page != WATCHED)


LEARNS_LONG = [page for page in PAGES if page != WATCHED and LONG.search(page.read_text(encoding="utf-8"))]


@pytest.mark.slow
@pytest.mark.parametrize("page", LEARNS_LONG, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_that_learns_for_long_runs_as_it_stands(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run(page, page.read_text(encoding="utf-8"))


def test_only_long_learning_is_made_shorter():
    assert {README, ROOT / "docs" / "task-unknown.md"} <= set(LEARNS_LONG)
    assert LONG.sub(SHORTER, "learn(10_000) learn(9_000) learn(500)") == f"{SHORTER} learn(9_000) learn(500)"


# A process per block, which has nothing of owlrl yet; what takes long to import is there already.
BY_ITSELF = """
import os, sys, traceback
import gymnasium, stable_baselines3, torch, torch._dynamo

assert "owlrl" not in sys.modules
for line, code in {blocks!r}:
    print("block at line", line, flush=True)
    if child := os.fork():
        if os.waitpid(child, 0)[1]:
            sys.exit(f"the block at line {{line}} fails")
        continue
    try:
        exec(code, {{"__name__": "__main__"}})
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    sys.stdout.flush()
    os._exit(0)
"""


def shown_outputs(text: str) -> list[str]:
    """What a page shows below each of its blocks that are run, or an error where one shows nothing."""
    fences = [token for token in tokens(text) if token.type == "fence"]
    shown = []
    for block, after in zip(fences, [*fences[1:], None], strict=True):
        language = block.info.strip()
        if language in {RUN, RUN_AS_PATCHED, "bash"} and (after is None or after.info.strip() != "text"):
            raise ValueError(f"line {block.map[0] + 1}: the block does not show its output")
        if language in {RUN, RUN_AS_PATCHED}:
            shown.append(after.content)
    return shown


def without_numbers(text: str) -> str:
    return re.sub(r"-?\d+(\.\d*)?(e[+-]?\d+)?", "#", text)


def test_each_block_of_the_readme_runs_by_itself_and_prints_what_is_shown(tmp_path):
    text = LONG.sub(SHORTER, README.read_text(encoding="utf-8"))
    assert text.count("model.learn(200)") == 1  # of a large network, half of it before the first update
    text = text.replace("model.learn(200)", "model.learn(120)")
    needy = 10_000, "print(owl)"  # what the blocks before it have, and it has not
    program = BY_ITSELF.format(blocks=[*blocks(text), needy])
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True)
    assert "NameError: name 'owl'" in done.stderr, done.stderr
    assert done.stderr.endswith("the block at line 10000 fails\n"), done.stderr
    printed = re.split(r"block at line \d+\n", done.stdout)[1:-1]
    assert [without_numbers(out) for out in printed] == [without_numbers(out) for out in shown_outputs(text)]


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda p: str(p.relative_to(ROOT)))
def test_make_targets_exist(page):
    targets = make_targets((ROOT / "Makefile").read_text(encoding="utf-8"))
    assert targets >= {"demo", "test"}
    assert named_targets(page.read_text(encoding="utf-8")) <= targets


def test_readme_keeps_its_promises():
    text = README.read_text(encoding="utf-8")
    fences = [token for token in tokens(text) if token.type == "fence"]
    first = next(token.content for token in fences if token.info.strip() == RUN)
    assert len([line for line in first.splitlines() if line.strip()]) <= 15
    patch = next(token.content for token in fences if token.info.strip() == RUN_AS_PATCHED)
    changed = [line for line in patch.splitlines() if line.startswith(("+", "-"))]
    assert 1 <= len(changed) <= 5
    assert {"demo", "test"} <= named_targets(text)


def test_a_block_without_its_output_is_noticed():
    assert shown_outputs("```python\nprint(1)\n```\n\n```text\n1\n```\n") == ["1\n"]
    for rest in ("", "```bash\nls\n```\n"):
        with pytest.raises(ValueError, match="line 1: the block does not show"):
            shown_outputs("```python\nprint(1)\n```\n\n" + rest)
    with pytest.raises(ValueError, match="line 1: the block does not show"):
        shown_outputs("```bash\nls\n```\n")


def test_name_version_and_length_are_those_that_were_promised():
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 250
    title = "owlrl: continual reinforcement learning around the off-policy learner you have"
    for page in (ROOT / "CITATION.cff", ROOT / "docs" / "citation.md"):
        assert title in page.read_text(encoding="utf-8"), page
    for page in (README, ROOT / "docs" / "install.md", ROOT / "docs" / "citation.md"):
        assert owlrl.__version__ in page.read_text(encoding="utf-8"), page
    for page in (README, ROOT / "docs" / "install.md"):
        assert "Never `pip install owlrl` or `pip install -U owlrl`" in page.read_text(encoding="utf-8"), page
        assert "rdflib" in page.read_text(encoding="utf-8"), page


def test_the_questions_that_people_ask_elsewhere_are_answered():
    asked = re.findall(r"^## (.+)$", (ROOT / "docs" / "faq.md").read_text(encoding="utf-8"), re.MULTILINE)
    for words in ("changes while `learn` runs", "add a task", "resume", "through the new task's head"):
        assert any(words in question for question in asked), words


PAGE = """
Text with `make demo`, and we make sure of it.

```python
x = 1
```

1. A list:

   ```python
   y = x + 1
   ```

```diff
 z = 3
-z = never_defined
+z = x + y + 1
```

<!-- no-run: pieces of somebody else's class -->
```diff
+owl = undefined
```

```bash
make test  # and so on
```
"""


def test_blocks_share_a_namespace_and_diffs_run_as_patched():
    namespace = run(README, PAGE)
    assert (namespace["x"], namespace["y"], namespace["z"]) == (1, 2, 4)
    assert named_targets(PAGE) == {"demo", "test"}


def test_what_is_shown_below_a_block_is_what_it_prints():
    text = "```python\nprint('a', 1.5)\n```\n\n```text\na {}\n```\n"
    run(README, text.format("27e-3"))
    with pytest.raises(AssertionError, match=r"README\.md, line 2"):
        run(README, text.format("b"))
    run(README, text.replace("\n\n```text", "\n\nNot its output:\n\n```text").format("b"))


def test_a_block_that_needs_a_package_runs_where_it_is():
    text = "<!-- needs: torchrl -->\n```python\nx = 1\n```\n\n```python\ny = 2\n```\n"
    assert [code for _, code in blocks(text)] == ["y = 2\n"]
    assert [code for _, code in blocks(text, "tianshou")] == ["y = 2\n"]
    assert [code for _, code in blocks(text, "torchrl")] == ["x = 1\n", "y = 2\n"]


def test_failure_names_the_line_of_the_page():
    with pytest.raises(NameError) as caught:
        run(README, "One\n\n```python\nx = 1\nmissing\n```\n")
    assert caught.traceback[-1].lineno + 1 == 5
    assert str(caught.traceback[-1].path).endswith("README.md")


@pytest.mark.parametrize(
    "text",
    [
        "<!-- no-run: slow -->\n```python\nx = 1\n```",
        "<!-- no-run: slow -->\n\n```python\nx = 1\n```",
        "<!-- needs: torchrl -->\n```diff\n+x = 1\n```",
        "<!-- needs: no_such_thing -->\n```python\nx = 1\n```",
        "```py\nx = 1\n```",
        "```python title=a.py\nx = 1\n```",
        "```{code-block} python\nx = 1\n```",
        "```pycon\n>>> x = 1\n```",
        "```\nx = 1\n```",
        "Text\n\n    x = 1\n",
    ],
)
def test_code_cannot_evade_being_run(text):
    with pytest.raises(ValueError, match="line"):
        blocks(text)


def test_make_targets_are_read_from_rules():
    assert make_targets("A := b\nexport X := y\ntest: $(S) ## run\n\tmake x\n.PHONY: test\nv:=1\n") == {
        "test"
    }
