"""Generated pages of contrib are as their scripts make them."""

import pytest

from conftest import ROOT
from pages import links, script


@pytest.mark.slow
def test_the_page_of_costs_is_as_its_script_makes_it():
    make_scale = script("contrib/make_scale")
    assert make_scale.page() == (make_scale.HERE / "scale.md").read_text()


@pytest.mark.ci_slow
def test_the_reference_is_as_its_script_makes_it():
    made = script("contrib/make_reference_of_contrib")
    for name, page in made.PAGES.items():
        told = f"run python docs/contrib/make_reference_of_contrib.py: {name}"
        assert page() == (made.HERE / name).read_text(), told


def test_every_picture_is_shown():
    pages = (ROOT / "docs" / "contrib").glob("*.md")
    shown = {target.rpartition("/")[2] for page in pages for target in links(page.read_text())}
    assert {path.name for path in (ROOT / "docs" / "contrib" / "images").glob("*.png")} <= shown
