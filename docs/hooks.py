"""What the site has beyond docs/: pages of the repository's own files, and links that are right in both places.

mkdocs.yml names this file. A page is written for readers of the repository: its links are relative to where it lies
there. On the site, links to pages stay on the site, and links to code lead to the repository. Where contrib was
deleted, links to it are plain words, and its pages are not in the navigation.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
CODE = "https://github.com/thinkalike/thinkalike/blob/main/"
PAGES = {  # files of the repository that are pages of the site
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/RESULTS.md": "benchmarks.md",
    "src/thinkalike/contrib/README.md": "contrib/index.md",
}
LINK = re.compile(r"""(\]\(|<img src=")([^)\s"#]+)""")  # where one begins, and the path without its anchor
WORDS = re.compile(r"\[([^\]]*)\]\(([^)\s#]+)[^)]*\)")  # a link with its words
CONTRIB = ("docs/contrib/", "src/thinkalike/contrib/")


def on_config(config: Any) -> Any:
    """Leave those pages of contrib out of the navigation that are not there."""
    config.nav = with_what_is_there(config.nav)
    return config


def with_what_is_there(entries: list[Any]) -> list[Any]:
    """Return the entries of a navigation without pages of contrib that are not there, and without empty parts."""
    kept: list[Any] = []
    for entry in entries:
        title, inside = next(iter(entry.items())) if isinstance(entry, dict) else ("", entry)
        if isinstance(inside, list):
            inside = with_what_is_there(inside)
        if inside and not (isinstance(inside, str) and is_missing(source_of(inside))):
            kept.append({title: inside} if title else inside)
    return kept


def source_of(page: str) -> str:
    """Return the file in the repository that a page of the site is made of."""
    return next((source for source, other in PAGES.items() if other == page), f"docs/{page}")


def is_missing(path: str) -> bool:
    """Return whether a file of the repository is one of contrib that is not there."""
    return path.startswith(CONTRIB) and not (ROOT / path).exists()


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
        if is_missing(source):
            continue
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Return the text of a page with the links of the site."""
    return with_links(markdown, page.file.src_uri)


def with_links(markdown: str, page: str) -> str:
    """Return a text with the links that it has as a page of the site.

    Args:
        page: its path on the site.
    """
    source = source_of(page)

    def plain(found: re.Match[str]) -> str:
        return found[1] if is_missing(path_of(found[2], source)) else found[0]

    def link(found: re.Match[str]) -> str:
        begin, target = found.groups()
        return found[0] if "://" in target or target.startswith("mailto:") else begin + place_of(target, source, page)

    return LINK.sub(link, WORDS.sub(plain, markdown))


def path_of(target: str, source: str) -> str:
    """Return the path in the repository of what a link in the file `source` leads to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(source), target))


def place_of(target: str, source: str, page: str) -> str:
    """Return where a link of a page leads.

    Args:
        target: as the file in the repository has it.
        source: the path of that file in the repository.
        page: its path on the site.
    """
    path = path_of(target, source)
    on_site = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
    return CODE + path if on_site is None else posixpath.relpath(on_site, posixpath.dirname(page) or ".")
