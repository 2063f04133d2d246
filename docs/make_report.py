"""Draw the pictures of docs/guide/report.md: the page of a store in a browser, wide and narrow, light and dark.

python docs/make_report.py STORE [STORE ...]

The stores must hold results of two models of docs/make_real_models.py, SmolLM2 and Gemma. Playwright
and Chromium are needed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from make_tutorials import small
from playwright.sync_api import Browser, sync_playwright

from thinkalike.report.reports import gather, report_of, report_page

IMAGES = Path(__file__).parent / "images"
CHOSEN = ["smollm2", "gemma3-270m", 14, 8]  # the models, and a layer of each
WIDE = (1280, 900)
NARROW = (390, 844)


@dataclass(frozen=True)
class Shot:
    """A picture of the page in a window of some size, in a color scheme.

    Attributes:
        top: What is at the top of the window, as a CSS selector; the page itself by default.
    """

    name: str
    size: tuple[int, int]
    scheme: str
    top: str = "body"


SHOTS = (
    Shot("report-1280-light", WIDE, "light"),
    Shot("report-1280-dark", WIDE, "dark"),
    Shot("report-390-light", NARROW, "light"),
    Shot("report-390-dark", NARROW, "dark"),
    Shot("report-detail", WIDE, "light", top="#detail"),
)


def main() -> None:
    """Draw all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("stores", type=Path, nargs="+", metavar="STORE")
    stores = parser.parse_args().stores
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as running:
        page = Path(folder) / "page.html"
        page.write_text(report_page(report_of(gather(stores)), "results"), encoding="utf-8")
        browser = running.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for shot in SHOTS:
            picture = photographed(browser, page.as_uri(), shot)
            (IMAGES / f"{shot.name}.png").write_bytes(small(picture))
        browser.close()


def photographed(browser: Browser, address: str, shot: Shot) -> bytes:
    """Return a picture of the page as a PNG, with the chosen layer pair."""
    width, height = shot.size
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=shot.scheme)
    page = context.new_page()
    page.goto(f"{address}#pair={quote(json.dumps(CHOSEN))}")
    page.wait_for_selector("html[data-ready]")
    # An open result says in which folder of this machine it lies.
    page.evaluate("document.querySelectorAll('.result').forEach((result) => { result.open = false; })")
    page.evaluate("selector => document.querySelector(selector).scrollIntoView()", shot.top)
    picture = page.screenshot()
    context.close()
    return picture


if __name__ == "__main__":
    main()
