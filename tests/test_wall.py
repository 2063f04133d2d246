"""The wall between the core and contrib: the core's tests know nothing of it, and with it deleted the core is whole."""

from __future__ import annotations

import ast
import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pages
import tiny
from conftest import ROOT, of_core, smallest_words
from source_imports import imported
from thinkalike.config import MEASURES, ModelConfig, instrument

CONTRIB = ("src/thinkalike/contrib", "tests/contrib", "docs/contrib")
TESTS = [path for path in (ROOT / "tests").rglob("*.py") if not path.is_relative_to(ROOT / "tests" / "contrib")]


def into_contrib(source: str) -> list[str]:
    """Return what a source imports of contrib, also by a name in a string, as `import_module` takes it."""
    if "contrib" not in source:
        return []  # which is quicker than to parse it
    names = [name for name in imported(source) if name.startswith("thinkalike.contrib")]
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    for call in calls:
        words = [str(node.value) for node in call.args if isinstance(node, ast.Constant)]
        words = [word for word in words if word.startswith("thinkalike.contrib")]
        by_name = ("import_module", "importorskip", "setattr")
        names += words if words and ast.unparse(call.func).endswith(by_name) else []
    return names


def test_no_test_of_the_core_imports_contrib():
    helpers = [ROOT / "benchmarks" / "path.py", ROOT / "benchmarks" / "bench.py", ROOT / "docs" / "hooks.py"]
    helpers += (ROOT / "docs").glob("make_*.py")
    found = {str(path.relative_to(ROOT)): into_contrib(path.read_text()) for path in (*TESTS, *helpers)}
    assert {name: names for name, names in found.items() if names} == {}
    assert len(found) > 80, "control"


@pytest.mark.parametrize(
    "source",
    [
        "from thinkalike.contrib.court.job import Court",
        "def f():\n    import thinkalike.contrib",
        "import_module('thinkalike.contrib.papers')",
        "monkeypatch.setattr('thinkalike.contrib.papers.x', 1)",
    ],
)
def test_an_import_of_contrib_is_found(source):
    assert len(into_contrib(source)) == 1


def test_a_model_of_the_core_has_few_settings():
    assert len(dataclasses.fields(ModelConfig)) <= 18


def test_commands_that_contrib_adds_are_told_from_those_of_the_core():
    assert pages.needs_contrib(["measure=court"])
    assert pages.needs_contrib(["model=gpt2-mini", "task=pretrain"])
    assert not pages.needs_contrib(["measure=cka", "model=gpt2"])


@pytest.fixture(scope="module")
def without_contrib(tmp_path_factory):
    """A copy of the repository in which contrib, its tests and its pages are deleted."""
    copy = tmp_path_factory.mktemp("core") / "thinkalike"
    left_out = shutil.ignore_patterns(".*", "*.egg-info", "__pycache__", "results", "site", "multirun", "build")
    shutil.copytree(ROOT, copy, ignore=left_out)
    for folder in CONTRIB:
        shutil.rmtree(copy / folder, ignore_errors=True)  # this may be such a copy itself
    return copy


def run(folder: Path, *words: str) -> subprocess.CompletedProcess:
    environment = {**os.environ, "PYTHONPATH": str(folder / "src"), "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    return subprocess.run([sys.executable, *words], cwd=folder, env=environment, capture_output=True, text=True)


@pytest.mark.ci_slow
def test_the_core_is_imported_and_lists_nothing_of_contrib(without_contrib):
    code = "import thinkalike, thinkalike.catalogue as p; print(thinkalike.__file__, p.PACKAGES, p.conf_folders())"
    found = run(without_contrib, "-c", code)
    assert found.returncode == 0, found.stderr
    assert str(without_contrib) in found.stdout
    assert "contrib" not in found.stdout.replace(str(without_contrib), "")
    for script in ("train.py", "analyze.py"):
        shown = run(without_contrib, script, "--help")
        assert shown.returncode == 0, shown.stderr
        assert "measure: cka, diff, disagreement" in shown.stdout or script == "train.py"
        assert "court" not in shown.stdout


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("analyze.py measure=court", "measure=court is not known; there is: cka"),
        ("analyze.py pairs=mnli", "'pairs' is not a setting"),
        ("analyze.py experiment=brown2023/figure1", "no installed package has experiments"),
        ("train.py task=pretrain model=gelu-3l-mini", "task=pretrain is not known; there is: stitch"),
        ("train.py model.architecture.n_layers=2", "'model.architecture' is not a setting"),
        ("analyze.py measure=trajectory model=gpt2-mini measure.train=['seed=1']", "task=pretrain is not known"),
    ],
)
def test_what_contrib_has_is_refused_in_one_line(without_contrib, words, said):
    done = run(without_contrib, *words.split())
    assert done.returncode == 1
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


SIZES = ["logger=none", "threads=1"]
PAIR = ["model=gpt2-mini", "model@target=gpt2-mini-s1"]


def models_of(kind: str) -> list[str]:
    """Return the models, and what else the command line of a measure needs."""
    if kind == "trajectory":
        return ["model={run}", "stimuli.features=[PoS]", "data=pydoc"]
    of_one = instrument(MEASURES[kind]).of_models == "each"
    return PAIR[:1] if of_one else PAIR


JOBS = {  # by name; every measure of the core has one
    "stitch": ["train.py", *smallest_words("stitch")],
    **{kind: ["analyze.py", f"measure={kind}", *models_of(kind), *smallest_words(kind)] for kind in of_core(MEASURES)},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", JOBS)
def test_a_job_of_each_instrument_runs(without_contrib, name, tmp_path):
    for step in (0, 10):
        tiny.write_checkpoint("gpt2", tmp_path / "run" / f"checkpoint-{step}", seed=step)
    words = [word.replace("{run}", str(tmp_path / "run")) for word in JOBS[name]]
    done = run(without_contrib, *words, *SIZES, f"store={tmp_path}/results", f"data.cache={tmp_path}/cache")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("results: ")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_all_tests_of_the_core_are_collected_and_a_sample_passes(without_contrib):
    quick = ["-m", "pytest", "-n0", "-p", "no:cacheprovider"]
    collected = run(without_contrib, *quick, "--collect-only", "-q")
    assert collected.returncode == 0, collected.stdout[-3000:]
    assert "tests/contrib" not in collected.stdout
    sample = ["tests/config/test_config.py", "tests/test_docs.py", "tests/test_path.py", "tests/measures/test_shape.py"]
    passed = run(without_contrib, *quick, *sample, "--deselect", BENCHMARKED)
    assert passed.returncode == 0, passed.stdout[-3000:]


BENCHMARKED = "tests/test_docs.py::test_no_table_of_benchmarks_is_older_than_its_code"  # says nothing of contrib


@pytest.mark.slow
def test_the_site_builds_strictly_without_the_pages_of_contrib(without_contrib, tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    pytest.importorskip("mkdocstrings")
    built = run(without_contrib, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path))
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "guide" / "trajectories.html").exists()
    assert not (tmp_path / "contrib").exists()
