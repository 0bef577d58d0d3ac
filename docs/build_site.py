# SPDX-License-Identifier: Apache-2.0
"""Builds the reference into a folder: docstrings by pdoc, these pages by markdown-it; no network, and no broken link.

    python docs/build_site.py build/site

Needs `pip install -e '.[dev]'`.  Ends with status 1 and a list when a link inside the site leads nowhere.
"""

from __future__ import annotations

import html
import importlib
import pkgutil
import re
import shutil
import sys
import warnings
from collections.abc import Iterable
from html.parser import HTMLParser
from pathlib import Path

import pdoc
from markdown_it import MarkdownIt

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    "blocks",
    "emulator",
    "engram",
    "errors",
    "exchange",
    "exchange.aio",
    "files",
    "integrations",
    "mapping",
    "nn",
    "prefetch",
    "prefetch.pool",
    "rows",
    "sdk",
    "urma",
)
PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{title}</title><style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse; display: block; overflow-x: auto }} td, th {{ border: 1px solid #8886; padding: .3em .6em; text-align: left }}
pre {{ overflow-x: auto; padding: .8em; background: #8881 }} code {{ background: #8881 }}
@media (prefers-color-scheme: dark) {{ body {{ background: #111; color: #ddd }} a {{ color: #8bf }} }}
</style><p><a href="{up}index.html">obmm</a> · <a href="{up}pages/README.html">README</a></p>{body}</html>"""


def modules() -> list[str]:
    """The doors: the package and its rooms; one whose extra is not installed is left out, and said."""
    found = []
    for name in ("obmm", *(f"obmm.{room}" for room in ROOMS)):
        try:
            module = importlib.import_module(name)
            for offered in getattr(module, "__all__", ()):
                setattr(module, offered, getattr(module, offered))  # names that are loaded at first use, for pdoc
            if name.removeprefix("obmm.") not in importlib.import_module("obmm").__all__:  # what it names it brings
                found.append(name)
        except ImportError as error:
            print(f"  left out: {name} ({error})")
            continue
        if not hasattr(module, "__all__"):  # what it offers is its modules
            found += left_out(module.__path__, f"{name}.")
    return found


def left_out(path: Iterable[str], prefix: str) -> list[str]:
    """Modules of a room that this machine cannot import, because they belong to an engine that is not here; for pdoc."""
    found = []
    for module in pkgutil.walk_packages(path, prefix):
        try:
            importlib.import_module(module.name)
        except ImportError as error:
            print(f"  left out: {module.name} ({error})")
            found.append(f"!{module.name}$")
            warnings.filterwarnings("ignore", message=f"Couldn't import {re.escape(module.name)}:")
    return found


def slug(text: str) -> str:
    return re.sub(r"[^\w\- ]", "", html.unescape(re.sub(r"<[^>]+>", "", text)).lower()).replace(" ", "-")


def render(page: Path, site: Path) -> None:
    """One page of Markdown, its headings with anchors and its links to other pages as links to theirs."""
    target = site / "pages" / page.relative_to(ROOT).with_suffix(".html")
    body = MarkdownIt("commonmark", {"html": True}).enable("table").render(page.read_text())
    body = re.sub(r"<h(\d)>(.*?)</h\1>", lambda m: f'<h{m[1]} id="{slug(m[2])}">{m[2]}</h{m[1]}>', body)
    body = re.sub(r'href="(?!https?:)([^"#]*)\.md(#[^"]*)?"', lambda m: f'href="{m[1]}.html{m[2] or ""}"', body)
    target.parent.mkdir(parents=True, exist_ok=True)
    up = "../" * (len(target.relative_to(site).parts) - 1)
    target.write_text(PAGE.format(title=page.stem, up=up, body=body))


class Links(HTMLParser):
    """What a page links to and what it can be linked at."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(page.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.anchors |= {value for key in ("id", "name") if (value := found.get(key))}
        if tag == "a" and (target := found.get("href")) and not re.match(r"[a-z]+:", target):
            self.links.add(target)


def broken(site: Path) -> list[str]:
    """Every link inside the site that leads nowhere.  Links to files of the repository are looked up there.

    pdoc's own anchors are not: it points to inherited members of built-in classes, which it does not show.
    """
    pages = {page.resolve(): Links(page) for page in site.rglob("*.html")}
    wrong = []
    for page, found in pages.items():
        for link in sorted(found.links):
            path, _, anchor = link.partition("#")
            there = (page.parent / path).resolve() if path else page
            source = ROOT / there.relative_to(site / "pages") if there.is_relative_to(site / "pages") else there
            if there not in pages:
                if not source.exists():
                    wrong.append(f"{page.relative_to(site)}: {link}")
            elif anchor and anchor not in pages[there].anchors and (site / "pages") in page.parents:
                wrong.append(f"{page.relative_to(site)}: {link}")
    return wrong


def main() -> None:
    site = Path(sys.argv[1]).resolve()
    shutil.rmtree(site, ignore_errors=True)
    warnings.filterwarnings("ignore", message="Error parsing type annotation")  # shown as they are written
    pdoc.render.configure(docformat="markdown", show_source=False)
    pdoc.pdoc(*modules(), output_directory=site)
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"]
    for page in [*pages, *sorted((ROOT / "docs").rglob("*.md"))]:
        render(page, site)
    wrong = broken(site)
    if wrong:
        sys.exit("links that lead nowhere:\n  " + "\n  ".join(wrong))
    print(f"  {sum(1 for _ in site.rglob('*.html'))} pages in {sys.argv[1]}")


if __name__ == "__main__":
    main()
