"""The page as one file: its HTML, CSS and JavaScript, and what it shows, compressed into the page itself."""

from __future__ import annotations

import base64
import gzip
import html
import json
import os
from datetime import datetime
from pathlib import Path

from thinkalike.errors import StoreError
from thinkalike.report.reports import Report

PARTS = Path(__file__).parent / "page"
SCRIPTS = ("elements", "colours", "data", "matrix", "charts", "results", "pair", "profiles", "claims", "main")


def page_of(report: Report, title: str) -> str:
    """Return the HTML of a page, which needs nothing from outside itself.

    Args:
        report: what it shows, see `report_of`.
        title: what the page is called, such as the name of the store.
    """
    template = (PARTS / "page.html").read_text()
    scripts = "\n".join((PARTS / f"{name}.js").read_text() for name in SCRIPTS)
    made = datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %Z")
    content = json.dumps({"title": title, "made": made, **report}, ensure_ascii=False, allow_nan=False)
    packed = base64.b64encode(gzip.compress(content.encode(), mtime=0)).decode()
    parts = {"TITLE": html.escape(title), "STYLE": (PARTS / "style.css").read_text(), "SCRIPT": scripts, "DATA": packed}
    for name, text in parts.items():
        template = template.replace(f"{{{{{name}}}}}", text)
    return template


def write_page(path: str | os.PathLike[str], page: str) -> Path:
    """Write a page and return its path; the folders above it are made.

    Raises:
        StoreError: it cannot be written there.
    """
    path = Path(path).expanduser()
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise StoreError(f"the page {path} cannot be written: {reason}; choose another with --out PAGE.html") from error
    return path
