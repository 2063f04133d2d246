"""What the site has beyond docs/: pages of the repository's own files, and links that are right in both places.

mkdocs.yml names this file. A page is written for readers of the repository: its links are relative to where it lies
there. On the site, links to pages stay on the site, and links to code lead to the repository.
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


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that lie outside docs/."""
    from mkdocs.structure.files import File

    for source, page in PAGES.items():
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
    source = next((source for source, other in PAGES.items() if other == page), f"docs/{page}")

    def link(found: re.Match[str]) -> str:
        begin, target = found.groups()
        return found[0] if "://" in target or target.startswith("mailto:") else begin + place_of(target, source, page)

    return LINK.sub(link, markdown)


def place_of(target: str, source: str, page: str) -> str:
    """Return where a link of a page leads.

    Args:
        target: as the file in the repository has it.
        source: the path of that file in the repository.
        page: its path on the site.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    on_site = path.removeprefix("docs/") if path.startswith("docs/") else PAGES.get(path)
    return CODE + path if on_site is None else posixpath.relpath(on_site, posixpath.dirname(page) or ".")
