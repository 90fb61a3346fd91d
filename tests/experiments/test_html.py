from __future__ import annotations

import base64
import re

from matplotlib.figure import Figure

from owlrl.experiments import _html

MARKDOWN = """## a title

Some words,
on two lines.

| method | right | seeds |
| --- | --- | --- |
| <owl> & co | 0.50 [0.40, 0.60] | 3 |
| other | – | -1 |
"""


def test_tables_from_markdown():
    text = _html.tables(MARKDOWN)
    assert "a title" not in text
    assert "<p>Some words, on two lines.</p>" in text
    assert re.findall(r'<th scope="col">(.*?)</th>', text) == ["method", "right", "seeds"]
    assert re.findall(r"<td.*?</td>", text) == [
        "<td>&lt;owl&gt; &amp; co</td>",
        '<td class="number">0.50 [0.40, 0.60]</td>',
        '<td class="number">3</td>',
        "<td>other</td>",
        '<td class="number">–</td>',
        '<td class="number">-1</td>',
    ]
    assert _html.tables("") == ""


def test_pictures_are_in_the_page():
    text = _html.image(b"\x00\x01", kind="gif", text='a "b"', caption="<c>", width=7)
    assert 'src="data:image/gif;base64,AAE="' in text
    assert 'alt="a &quot;b&quot;" width="7"' in text and "<figcaption>&lt;c&gt;</figcaption>" in text
    drawn = _html.drawing(Figure(figsize=(2, 1)), text="nothing")
    assert 'width="192"' in drawn and "figcaption" not in drawn
    assert base64.b64decode(re.search('base64,([^"]*)', drawn)[1]).startswith(b"\x89PNG")


def test_words_are_escaped():
    assert _html.paragraph("<i>") == "<p>&lt;i&gt;</p>"
    assert _html.items({"<a>": "&"}) == "<dl><dt>&lt;a&gt;</dt><dd>&amp;</dd></dl>"
    assert _html.code(["a < b", "c"]) == "<pre>a &lt; b\nc</pre>"
    page = _html.page("<t>", ["body"])
    assert "<title>&lt;t&gt;</title>" in page and page.startswith("<!DOCTYPE html>")
