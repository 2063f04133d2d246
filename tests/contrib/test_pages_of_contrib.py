"""Generated pages of contrib are as their scripts make them."""

import pytest

from pages import script


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
