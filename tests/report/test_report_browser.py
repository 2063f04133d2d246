"""The page of a store in a real browser: what a reader points at, clicks and types shows the numbers of the tables."""

import shutil

import numpy as np
import pandas as pd
import pytest

from stores import finish, layer_pairs, profile
from thinkalike.report.reports import gather, report_of, report_page

pytestmark = [pytest.mark.slow, pytest.mark.browser]
EVIL = "x</script><b onclick=alert(1)>evil</b>"
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    """Two measures of the layers of a and b, the second from b to a, with one number that was not computed."""
    cka, stitching = layer_pairs("a-mini", "b-mini", 3, 2), layer_pairs("b-mini", "a-mini", 2, 3, seed=1)
    stitching = stitching.rename(columns={"value": "penalty", "low": "penalty_low", "high": "penalty_high"})
    stitching = stitching.assign(identity_penalty=2.5, verdict="related")
    stitching.loc[5, ["penalty", "penalty_low", "penalty_high"]] = np.nan  # layer 1 of b into layer 2 of a
    return {"cka": cka, "stitching": stitching}


@pytest.fixture(scope="module")
def address(tables, tmp_path_factory) -> str:
    """The page of a store, as a file."""
    store = tmp_path_factory.mktemp("results")
    for kind, table in tables.items():
        finish(store, kind, f"{kind}-key", {"table": table}, models=("a-mini", "b-mini"))
    finish(store, "rsa", "r", {"table": layer_pairs(EVIL, "a-mini", 2, 2)}, models=(EVIL, "a-mini"))
    for n, model in enumerate(("a-mini", "b-mini")):
        table = profile(model, ["tense", "case"], 2, seed=n)
        finish(store, "mlem", model, {"table": table}, models=(model,), command="python analyze.py measure=mlem")
    claims = {"claim": ["A is like B"], "verdict": ["does not hold"], "numbers": ["+0.1"], "units": ["9 documents"]}
    finish(store, "paper-figure1", "p", {"table": tables["cka"], "claims": pd.DataFrame(claims)}, models=())
    page = store / "page.html"
    page.write_text(report_page(report_of(gather([store])), "results"), encoding="utf-8")
    return page.as_uri()


@pytest.fixture(scope="module")
def chromium():
    """A browser without a window."""
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install thinkalike[browser]")
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not found:
        pytest.skip(f"needs one of {', '.join(BROWSERS)}")
    with playwright.sync_playwright() as running:
        browser = running.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def seen(chromium, address):
    """Opens the page; at the end of the test there was no error and no request but that for the file."""
    wrong, contexts = [], []

    def opened(anchor: str = "", address: str = address, **options):
        context = chromium.new_context(**options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("request", lambda request: request.url.startswith(address) or wrong.append(request.url))
        page.goto(address + anchor)
        page.wait_for_selector("html[data-ready]", timeout=30_000)
        return page

    yield opened
    for context in contexts:
        context.close()
    assert wrong == []


def cell(page, panel: int, row: int, column: int):
    """The cell of a matrix: a layer of the first model and one of the second."""
    rows = page.locator("#pair figure.panel").nth(panel).locator("g[role=row]")
    return rows.nth(row).locator("[role=gridcell]").nth(column)


def of(table: pd.DataFrame, source: int, target: int) -> pd.Series:
    """The row of a table."""
    return table.set_index(["source_layer", "target_layer"]).loc[(source, target)]


def readouts(page) -> list[str]:
    return page.locator("#pair .readout").all_inner_texts()


def begins(row: pd.Series, name: str, low: str, high: str) -> str:
    """How a value and its interval are written."""
    return f"{row[name]:.4g} [{row[low]:.4g}, {row[high]:.4g}]"


def test_what_is_pointed_at_in_one_matrix_is_read_in_all_of_them(seen, tables):
    page = seen()
    assert page.title() == "results – thinkalike"
    assert page.locator("#pairs option:checked").inner_text() == "a-mini and b-mini (2 matrices)"
    for a, b in [(2, 0), (1, 1)]:
        cell(page, 0, a, b).hover()
        first, second = readouts(page)
        assert first.startswith(begins(of(tables["cka"], a, b), "value", "low", "high"))
        other = begins(of(tables["stitching"], b, a), "penalty", "penalty_low", "penalty_high")
        assert second.startswith(other), "the other direction, turned"
    cell(page, 0, 2, 1).hover()
    assert [text.startswith("not computed") for text in readouts(page)] == [False, True]


def test_a_click_shows_all_numbers_of_a_layer_pair(seen, tables):
    page = seen()
    cell(page, 1, 1, 0).click()
    detail = page.locator("#detail").inner_text()
    for row in (of(tables["cka"], 1, 0), of(tables["stitching"], 0, 1)):
        for value in row[[name for name in row.index if isinstance(row[name], float)]]:
            assert f"{value:.6g}" in detail
    assert "identity penalty" in detail
    assert "related" in detail
    for kind in tables:
        assert f"{kind}/{kind}-key" in detail
    assert "paper-figure1/p" in detail, "which repeats the table of cka"
    for n, (model, layer) in enumerate([("a-mini", 1), ("b-mini", 0)]):
        table = profile(model, ["tense", "case"], 2, seed=n)
        assert all(f"{value:.6g}" in detail for value in table.loc[table["layer"] == layer, "importance"])


def test_search_filters_results_pairs_and_claims(seen):
    page = seen()
    visible = page.locator(".result:visible")
    assert (visible.count(), page.locator("#pairs option").count()) == (6, 2)
    assert page.locator("#claims li").count() == 1
    page.keyboard.press("/")
    page.keyboard.type("MLEM b-mini")
    assert [text.split("\n")[0] for text in visible.all_inner_texts()] == ["mlem b-mini"]
    assert page.locator("#found").inner_text() == "1 of 6 results"
    assert (page.locator("#pairs option").count(), page.locator("#claims li").count()) == (1, 0)
    page.locator("#search").fill("does not hold")
    assert (visible.count(), page.locator("#claims li").count()) == (0, 1)
    page.locator("#search").fill("")
    assert visible.count() == 6


def test_names_are_text_and_never_markup(seen):
    page = seen()
    page.locator("#pairs").select_option(label=f"{EVIL} and a-mini (1 matrix)")
    assert f"Layer 0 of {EVIL} and layer 0 of a-mini" in page.locator("#detail").inner_text()
    assert page.locator("b").count() == 0


def page_of(store, **tables: pd.DataFrame) -> str:
    """The address of a page of results of two models, one of each kind."""
    for kind, table in tables.items():
        finish(store, kind, f"{kind}-key", {"table": table}, models=("a-mini", "b-mini"))
    page = store / "page.html"
    page.write_text(report_page(report_of(gather([store])), "results"), encoding="utf-8")
    return page.as_uri()


def test_lines_of_one_chart_have_one_unit(seen, tmp_path):
    distance = layer_pairs("a-mini", "b-mini", 2, 2, cosine=0.9, norm_target=1000.0)
    stitching = layer_pairs("a-mini", "b-mini", 2, 2).rename(columns={"value": "penalty"})
    stitching = stitching.assign(identity_penalty=2.5, tokens=4096)
    page = seen(address=page_of(tmp_path, distance=distance, stitching=stitching))
    charts = page.locator("#pair svg[role=img]")
    assert charts.locator("polyline").count() == 3, "the distance, the penalty and its control"
    assert "1000" not in charts.nth(0).text_content()
    named = [name.strip() for name in page.locator("#pair .series > span").all_inner_texts()]
    assert named == ["penalty", "identity penalty"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_computed_cell_can_be_told_from_a_blank_one(scheme, seen, tmp_path):
    """The lowest value is dark blue, which could hardly be seen on the blank cells of a dark page."""
    table = layer_pairs("a-mini", "b-mini", 2, 2)
    for part, strokes in ((table.iloc[[0, 3]], {"rgb"}), (table, {"none"})):
        page = seen(address=page_of(tmp_path, large=part), color_scheme=scheme)
        cells = page.locator("#pair .cell:not(.blank)")
        found = cells.evaluate_all("cells => cells.map(cell => getComputedStyle(cell).stroke)")
        assert len(found) == len(part)
        assert {stroke.partition("(")[0] for stroke in found} == strokes


WRITTEN_AT = 11  # the size of letters in a drawing, before it is fitted into its place


@pytest.mark.parametrize("width", [1280, 390])
def test_letters_of_small_charts_can_be_read(width, seen, tmp_path):
    features = [f"feature {number}" for number in range(8)]
    tables = {"cka": layer_pairs("a-mini", "b-mini", 2, 2), "mlem": profile("a-mini", features, 30)}
    page = seen(address=page_of(tmp_path, **tables), viewport={"width": width, "height": 900})
    charts = page.locator("#pair .panels svg[role=img]")
    assert charts.count() == len(features)
    scales = "charts => charts.map(chart => chart.getBoundingClientRect().width / chart.viewBox.baseVal.width)"
    assert min(charts.evaluate_all(scales)) * WRITTEN_AT >= 9, "pixels"


def test_a_narrow_page_is_no_wider_than_its_window(seen, tmp_path):
    tables = {
        kind: layer_pairs("a-mini", "b-mini", 2, 2, value_including_massive_activations=0.5) for kind in ("rsa", "cka")
    }
    page = seen(address=page_of(tmp_path, **tables), viewport={"width": 390, "height": 900})
    assert page.locator("#pair figcaption select").count() == 2
    assert page.evaluate("document.documentElement.scrollWidth") == 390
