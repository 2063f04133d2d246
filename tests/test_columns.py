"""Every column and number that a registered instrument stores has a meaning on the page of columns."""

import re
from functools import cache

import pytest

import tiny
from conftest import ROOT, smallest_words
from thinkalike.config import MEASURES, compose_job, instrument
from thinkalike.instruments import run_job
from thinkalike.registry import CORE, layer_measures

PAGE = ROOT / "docs" / "reference" / "columns.md"
BESIDE = {  # further pages with tables of columns
    "Stitching": ROOT / "docs" / "guide" / "stitching.md",
    "Layer pairs": ROOT / "docs" / "guide" / "measures.md",
}
OF_ALL_TABLES = "Columns"  # the section before the first instrument
SECTIONS = {
    "stitching": "Stitching",
    "ruler": "Ruler",
    "loss": "Loss",
    "diff": "Diff",
    "lineage": "Lineage",
    "mlem": "MLEM",
    "rsa": "RSA",
    "trajectory": "Trajectory",
    **dict.fromkeys(("cka", "r2", "distance"), "Layer pairs"),
    **{entry.kind: "Layer pairs" for entry in layer_measures()},
}  # by the kind of a result
ENDINGS = re.compile(r"_(low|high|uncorrected)$")


@cache
def explained(section: str) -> set[str]:
    """The names that a section of the page explains, and those of all tables."""
    text = PAGE.read_text()
    parts = re.split(r"^#+ (.+)$", text, flags=re.MULTILINE)
    by_heading = dict(zip(parts[1::2], parts[2::2], strict=True))
    pages = [by_heading[OF_ALL_TABLES], by_heading[section]]
    if section in BESIDE:
        pages.append(BESIDE[section].read_text())
    if section == "Layer pairs":  # with ruler=bits
        pages.append(by_heading["Ruler"])
    return set(re.findall(r"`([\w.]+)`", " ".join(pages)))


def unexplained(kind: str, names) -> list[str]:
    """The names of a result that its section of the page does not explain."""
    known = explained(SECTIONS[kind])
    missing = []
    for name in names:
        quantity = ENDINGS.sub("", name).replace(f"_{kind}", "_NAME")
        of_rates = re.sub(r"^lr_x\w+_penalty$", "lr_x3_penalty", quantity)
        of_margins = re.sub(r"^exit_status_\w+$", "exit_status_NAME", of_rates)
        if of_margins not in known and name not in known:
            missing.append(name)
    return missing


def test_every_instrument_of_the_registry_has_a_section():
    assert {*SECTIONS} - {"stitching"} == {entry.kind for entry in CORE.measures}
    assert {*CORE.former_columns} <= {*SECTIONS}


@pytest.mark.parametrize("kind", CORE.former_columns)
def test_every_name_that_replaces_a_former_one_is_explained(kind):
    names = []
    for present in CORE.former_columns[kind]:
        is_table = present.endswith(".csv")
        names.append(present if is_table else present.rpartition(".")[2])
    if SECTIONS[kind] == "Layer pairs":
        only_of_r2 = {"r2_forward", "r2_backward"}
        assert kind == "r2" or not only_of_r2 & {*names}
    assert unexplained(kind, names) == []
    assert unexplained(kind, ["unheard_of"]) == ["unheard_of"], "control"


PAIR = ["model=gpt2-mini", "model@target=gpt2-mini-s1"]
MORE = {
    "stitching": ["stitch.both=true", "stitch.controls=true", "stitch.lr_multiples=[3]"],
    "cka": ["measure.null=true", "measure.permutations=9"],
}  # settings that add columns
SHARED = {"stitching": "train"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run of two checkpoints."""
    folder = tmp_path_factory.mktemp("trained")
    for step in (0, 10):
        tiny.write_checkpoint("gpt2", folder / f"checkpoint-{step}", seed=step)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("kind", SECTIONS)
def test_every_name_of_a_small_job_is_explained_and_none_is_a_former_one(kind, trained, tmp_path):
    models = PAIR
    if kind == "trajectory":
        models = [f"model={trained}", "stimuli.features=[PoS]", "data=pydoc"]
    elif kind != "stitching" and instrument(MEASURES[kind]).of_models == "each":
        models = PAIR[:1]
    what = [f"measure={kind}"]
    if kind == "stitching":
        what = []
    small = smallest_words({"stitching": "stitch"}.get(kind, kind))
    words = [*what, *models, *small, *MORE.get(kind, []), "threads=1", "logger=none", f"store={tmp_path}"]
    result = run_job(compose_job(SHARED.get(kind, "analyze"), words), shown=False)

    names = {*result.scalars, *(headline.name for headline in result.headlines)}
    stored = {}
    for file_name, table_name in result.table_files.items():
        first_line = (result.folder / file_name).read_text().splitlines()[0]
        stored[table_name] = first_line.split(",")
        names |= {*stored[table_name]}
    assert unexplained(kind, sorted(names)) == []
    assert {name: list(result.tables[name]) for name in stored} == stored, "no new name is a former one"
    assert {f"{name}.csv" for name in stored} == {*result.table_files}
