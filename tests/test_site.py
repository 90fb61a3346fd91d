"""The built documentation, looked at in a browser as a reader does: on a screen and on a phone."""

from __future__ import annotations

import inspect
import json
import pydoc
import shutil
import subprocess
import sys
import threading
from collections.abc import Sequence
from functools import partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import unquote, urlsplit

import pytest

from owlrl.experiments import write_report

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WIDE, SCREEN, PHONE = 1920, 1280, 390
# What people look for, and a page that must be among what they find.
SEARCHES = {
    "custom environment": "faq.html",
    "tutorial": "gallery.html",
    "citation": "citation.html",
    "tensorboard": "watch.html",
    "resume": "save-resume-deploy.html",
}
SECONDS = 400

# Opens page after page in a frame of a screen's width, and reports what does not fit or is not there.
PROBE = """<!doctype html><meta charset="utf-8"><title>probe</title><body><script>
const pages = %(pages)s, widths = %(widths)s, searches = %(searches)s;
const pause = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const places = [];  // of pictures that stand in rows
async function open(address, width) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:900px;border:0`;
  const loaded = new Promise(done => frame.onload = done);
  frame.src = address;
  document.body.replaceChildren(frame);
  await loaded;
  return frame.contentDocument;
}
function look(doc, page, width) {
  for (const image of doc.images)
    for (const box of [image.getBoundingClientRect()])
      if (image.closest(".row")) places.push([page, width, Math.round(box.left), Math.round(box.top)]);
  doc.querySelectorAll("details").forEach(details => details.open = true);
  const root = doc.documentElement, found = [];
  if (root.scrollWidth > root.clientWidth)
    found.push(`the page is ${root.scrollWidth} wide`);
  for (const box of doc.querySelectorAll(".table-wrapper"))
    if (width >= %(screen)d && box.scrollWidth > box.clientWidth + 1)
      found.push(`a table is ${box.scrollWidth} wide in ${box.clientWidth}: ${box.innerText.slice(0, 60)}`);
  for (const image of doc.images)
    if (image.complete && !image.naturalWidth)
      found.push(`no image ${image.getAttribute("src").slice(0, 80)}`);
  return found.map(text => `${page} at ${width}: ${text}`);
}
async function search(words) {
  const doc = await open("search.html?q=" + encodeURIComponent(words), widths[0]);
  let links = [], quiet = 0;  // results come one by one
  for (let turn = 0; turn < 150 && quiet < (links.length ? 10 : 100); turn++) {
    await pause(100);
    const now = [...doc.querySelectorAll("#search-results li a")].map(a => a.getAttribute("href"));
    quiet = now.length === links.length ? quiet + 1 : 0;
    links = now;
  }
  return links;
}
(async () => {
  const problems = [], seen = [], found = {};
  try {
    for (const width of widths) for (const page of pages) {
      const doc = await open(page, width);
      await pause(20);
      problems.push(...look(doc, page, width));
      seen.push(`${page} ${width}`);
    }
    for (const words of searches) found[words] = await search(words);
  } catch (error) { problems.push(String(error.stack)); }
  await fetch("/report", {method: "POST", body: JSON.stringify({problems, seen, found, places})});
})();
</script>"""


class Server(SimpleHTTPRequestHandler):
    """Serves the site and takes the report."""

    report: ClassVar[dict[str, object]] = {}
    arrived: ClassVar[threading.Event] = threading.Event()

    def do_POST(self):
        Server.report = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(204)
        self.end_headers()
        Server.arrived.set()

    def log_message(self, *_):
        pass


class Links(HTMLParser):
    """Where a page leads, and the names it has."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.targets: list[str] = []
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.names |= {found[key] for key in ("id", "name") if found.get(key)}
        self.targets += [found[key] for key in ("href", "src") if found.get(key)]


def dead_links(site: Path) -> list[str]:
    """Links and files of the built pages that lead nowhere; other people's sites are not asked."""
    pages = {page: Links(page) for page in sorted(site.rglob("*.html"))}
    dead = []
    for page, links in pages.items():
        for target in links.targets:
            url = urlsplit(target)
            if url.scheme or url.netloc:
                continue
            file = (page.parent / unquote(url.path)).resolve() if url.path else page
            file = file / "index.html" if file.is_dir() else file
            lost = url.fragment and file in pages and unquote(url.fragment) not in pages[file].names
            if not file.exists() or lost:
                dead.append(f"{page.relative_to(site)}: {target}")
    return dead


def needs_network(site: Path) -> list[str]:
    """Scripts, styles and images that are fetched from elsewhere."""
    return [
        f"{page.relative_to(site)}: {target}"
        for page in sorted(site.rglob("*.html"))
        for target in Loads(page).targets
        if urlsplit(target).netloc
    ]


class Loads(Links):
    """What a page fetches by itself."""

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag in {"img", "script"} or (tag == "link" and found.get("rel") == "stylesheet"):
            self.targets += [found[key] for key in ("href", "src") if found.get(key)]


class Signatures(HTMLParser):
    """The names that a page of the reference describes, and which of them lead to their source."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.names: list[str] = []
        self.with_source: set[str] = set()
        self.open = False
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        classes = (found.get("class") or "").split()
        if tag == "dt":
            self.open = "sig-object" in classes
            self.names += [found["id"]] if self.open and found.get("id") else []
        elif self.open and "viewcode-link" in classes:
            self.with_source.add(self.names[-1])

    def handle_endtag(self, tag):
        self.open = self.open and tag != "dt"


def without_source(page: Path) -> list[str]:
    """Classes and functions of owlrl on the page that have no link to their source."""
    signatures, found = Signatures(page), []
    for name in signatures.names:
        thing = pydoc.locate(name)
        thing = getattr(thing, "fget", None) or thing  # of a property
        ours = str(getattr(thing, "__module__", "")).startswith("owlrl")
        if ours and (inspect.isclass(thing) or inspect.isroutine(thing)):
            found += [name] if name not in signatures.with_source else []
    return found


def browse(
    site: Path,
    profile: Path,
    searches: Sequence[str] = tuple(SEARCHES),
    widths: Sequence[int] = (SCREEN, PHONE),
) -> dict[str, object]:
    """What the probe reports of all pages at these widths."""
    browser = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    assert browser, "there is no Chromium to look at the pages with; on Debian: apt-get install chromium"
    pages = [str(page.relative_to(site)) for page in sorted(site.rglob("*.html"))]
    pages = [page for page in pages if not page.startswith("_modules/") and page != "probe.html"]
    values = {"pages": pages, "widths": widths, "searches": searches}
    text = PROBE % {**{key: json.dumps(value) for key, value in values.items()}, "screen": SCREEN}
    (site / "probe.html").write_text(text, encoding="utf-8")
    Server.arrived.clear()
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Server, directory=str(site))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}/probe.html"
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        command = [browser, *flags, f"--user-data-dir={profile}", "--remote-debugging-port=0", address]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            arrived = Server.arrived.wait(SECONDS)
        finally:
            process.terminate()
            process.wait(30)
            server.shutdown()
            (site / "probe.html").unlink()
    assert arrived, f"{browser} did not report within {SECONDS} s"
    assert len(Server.report["seen"]) == len(widths) * len(pages)
    return Server.report


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    target = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        str(DOCS),
        str(target),
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.slow
def test_no_link_is_dead_and_nothing_is_fetched(site):
    assert dead_links(site) == []
    assert needs_network(site) == []


@pytest.mark.slow
def test_what_is_described_leads_to_its_source(site):
    pages = sorted(site.glob("api/*.html"))
    assert sum(len(Signatures(page).with_source) for page in pages) > 500
    assert [name for page in pages for name in without_source(page)] == []


@pytest.mark.slow
def test_pages_fit_the_screen_and_the_phone_and_are_found(site, tmp_path):
    report = browse(site, tmp_path)
    assert report["problems"] == []
    for words, page in SEARCHES.items():
        found = [link.split("#")[0].split("?")[0] for link in report["found"][words]]
        assert page in found, f"{words!r} finds {found}"


def test_what_is_looked_for_is_found(tmp_path):
    (tmp_path / "a.html").write_text(
        '<p id="x"><a href="b.html">1</a><a href="b.html#y">2</a><a href="gone.html">3</a><a href="#x">4</a>'
        '<a href="b.html#no">5</a><img src="no.png"><script src="https://example.org/a.js"></script>',
        encoding="utf-8",
    )
    (tmp_path / "b.html").write_text('<p id="y"><a href="https://example.org">away</a>', encoding="utf-8")
    assert dead_links(tmp_path) == ["a.html: gone.html", "a.html: b.html#no", "a.html: no.png"]
    assert needs_network(tmp_path) == ["a.html: https://example.org/a.js"]


@pytest.mark.slow
def test_the_report_uses_the_width_of_the_screen(tmp_path):
    runs, site = tmp_path / "runs", tmp_path / "site"
    runs.mkdir()
    site.mkdir()
    for path in (ROOT / "benchmarks" / "results" / "grid").glob("crossroads-4-owl*-s0-*.jsonl"):
        shutil.copy(path, runs)
    write_report(runs, site / "report.html")
    report = browse(site, tmp_path / "profile", [], [WIDE, SCREEN, PHONE])
    assert report["problems"] == []
    at = {width: [place[2:] for place in report["places"] if place[1] == width] for width in (WIDE, PHONE)}
    assert len(at[WIDE]) == len(at[PHONE]) > 3
    assert any(left > WIDE / 3 for left, _ in at[WIDE])  # episodes side by side
    assert len({top for _, top in at[WIDE]}) < len(at[WIDE])
    assert len({top for _, top in at[PHONE]}) == len(at[PHONE])  # one below the other


def test_a_name_without_source_is_noticed(tmp_path):
    link = '<a href="x.html"><span class="viewcode-link">[source]</span></a>'
    shown = {"owlrl.OwlWrapper": link, "owlrl.OwlWrapper.stream": "", "owlrl.types": ""}
    lines = [f'<dt class="sig sig-object py" id="{name}">{name}{text}</dt>' for name, text in shown.items()]
    (tmp_path / "a.html").write_text("".join(lines), encoding="utf-8")
    assert without_source(tmp_path / "a.html") == ["owlrl.OwlWrapper.stream"]


@pytest.mark.slow
def test_the_browser_sees_what_does_not_fit(tmp_path):
    wide = '<div style="width:2000px">x</div>'
    table = '<div class="table-wrapper" style="overflow-x:auto"><div style="width:1500px">y</div></div>'
    images = '<img src="no.png">'
    site = tmp_path / "site"
    site.mkdir()
    (site / "bad.html").write_text(f"<!doctype html>{wide}{table}{images}", encoding="utf-8")
    (site / "search.html").write_text("<!doctype html><p>nothing", encoding="utf-8")
    report = browse(site, tmp_path / "profile", ["anything"])
    texts = "\n".join(report["problems"])
    assert "the page is 20" in texts and "a table is 1500" in texts and "no image no.png" in texts
    assert report["found"] == {"anything": []}
