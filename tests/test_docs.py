"""The documentation is true: commands compose, links lead somewhere, and made pages are as their scripts make them."""

import argparse
import ast
import inspect
import itertools
import json
import re
import runpy
from dataclasses import fields
from functools import cache
from html import unescape
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from matplotlib import get_data_path
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath
from packaging.requirements import Requirement

import pages
from conftest import ROOT, composed, with_slow
from pages import COMMANDS, DOCS, DOORS, script
from thinkalike.catalogue import FORMER_COLUMNS, conf_folders
from thinkalike.cli import NAMES_OF_MODELS, as_analysis
from thinkalike.config import CONF, MEASURES, TASKS, TrainConfig, instrument, measure_schema, options
from thinkalike.config.groups import GROUPS, folder_node, schema_node, unset_settings
from thinkalike.config.hydra_errors import keys_inside
from thinkalike.errors import ConfigError
from thinkalike.listing import Query

PAGES = pages.pages()
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def parsed(overrides):
    return OverridesParser.create().parse_overrides(overrides)


@cache
def keys(entry):
    """All settings and parts of a configuration, of any measure."""
    roots = {instrument(value).config for value in (TASKS if entry == "train" else MEASURES).values()}
    of_measures = (f"measure.{item.name}" for kind in MEASURES for item in fields(measure_schema(kind)))
    known = {key for root in roots for key in keys_inside(unset_settings(root))}
    return {*known, *(of_measures if entry == "analyze" else ())}


def check_names(entry, overrides):
    """Check that the options and settings of a command line are there."""
    for override in parsed(overrides):
        key = override.package or override.key_or_group
        folders = (CONF, *conf_folders().values())
        if override.key_or_group in GROUPS or any((folder / override.key_or_group).is_dir() for folder in folders):
            names = [getattr(each, "text", each) for each in getattr(override.value(), "list", [override.value()])]
            there = options(override.key_or_group)
            unknown = [each for each in names if isinstance(each, str) and each not in there]
            paths = [f"{override.key_or_group}/{each}" for each in unknown]
            assert not [each for each in paths if folder_node(each) is None and schema_node(each) is None], unknown
        else:
            parts = key.split(".")
            assert {key, ".".join(parts[:2]), parts[0]} & keys(entry) - {*GROUPS, "stitch", "target"}, key


def check(command):
    """Check a command line as far as that goes in no time: what it names is there; `compose` checks values, too."""
    if "--config-dir" in command.words:
        return  # its options are in a folder of its own; tests/test_docs_run.py runs it
    if command.entry in NAMES_OF_MODELS:
        check_names("analyze", as_analysis(command.words, command.entry))
    elif command.entry in DOORS:
        check_names(command.entry, command.overrides)
    elif command.entry in ("results", "report"):
        line = re.sub(r"--((out|title) \S+|csv|json)", "", " ".join(command.words))
        words = line.split()
        for place in [word for word in words if "=" not in word] or [None]:
            Query.parsed([word for word in words if "=" in word] + [place] * (place is not None))
    elif command.entry == "make":
        assert {word for word in command.words if "=" not in word} <= TARGETS
    else:
        assert (ROOT / command.entry).is_file()


def compose(command):
    for words in pages.jobs_of(parsed(command.overrides)) or [[]]:
        composed(*words, entry=command.entry)


def wrong(commands, *checks):
    found = []
    for command in commands:
        try:
            for each in checks:
                each(command)
        except (ConfigError, HydraException, AssertionError) as error:
            found.append(f"{command.page}: {command.entry} {' '.join(command.words)}: {error}")
    return found


def test_every_command_of_every_page_names_what_is_there():
    assert len(COMMANDS) > 120
    assert {each.entry for each in COMMANDS} > {*DOORS, "results", "report", "make", "docs/make_models.py"}
    assert wrong(COMMANDS, check) == []


def test_every_command_of_the_readme_composes():
    own = [each for each in COMMANDS if each.page == "README.md" and each.entry in DOORS]
    assert len(own) > 6
    assert wrong(own, compose) == []


@pytest.mark.slow
@pytest.mark.parametrize("entry", DOORS)
def test_every_command_of_every_page_composes(entry):
    own = [each for each in COMMANDS if each.entry == entry and "--config-dir" not in each.words]
    assert wrong(own, compose) == []


@pytest.mark.parametrize(
    "line",
    [
        "python train.py model=gelu-3l-mni",
        "python train.py stitch.step=3",
        "python analyze.py -m measure=cka,ckaa",
        "python train.py -m stitch.steps=20,0",
        "thinkalike results kinds=cka",
        "make trian",
        "python docs/make_nothing.py",
    ],
)
def test_a_wrong_command_is_found(line):
    ((entry, words),) = pages._called(line)
    checks = [check, *([compose] if "steps=20,0" in line else [])]
    assert len(wrong([pages.Command("", entry, words)], *checks)) == 1


def test_every_link_leads_to_a_file_and_a_heading():
    lost = []
    for page in PAGES:
        for target in pages.links(page.read_text()):
            path, _, anchor = target.partition("#")
            file = (page.parent / path).resolve() if path else page
            if pages.is_missing(file):
                continue
            if not file.exists() or (anchor and anchor not in pages.anchors(file.read_text())):
                lost.append(f"{pages.name_of(page)}: {target}")
    assert lost == []


def test_a_link_that_leads_nowhere_is_found():
    text = (
        "[a](gone.md) ![b](gone.png) `[c](code.md)` [d](https://elsewhere.org) [e](#here)\n\n## Over *there*, `now`\n"
    )
    assert list(pages.links(text)) == ["gone.md", "gone.png", "#here"]
    assert pages.anchors(text) == {"over-there-now"}


def test_every_picture_is_shown():
    shown = {target.rpartition("/")[2] for page in PAGES for target in pages.links(page.read_text())}
    shown |= set(re.findall(r"images/([\w.-]+\.(?:png|svg))", (ROOT / "README.md").read_text()))
    assert {path.name for path in (DOCS / "images").iterdir()} <= shown


MOST_BYTES = 120_000
"""Of the picture of a question: in 256 colours a figure takes less, and in all its colours more."""


def test_pictures_of_questions_are_compressed():
    pictures = sorted((DOCS / "images").glob("question-*.png"))
    assert pictures, "control: there are some"
    assert [path.name for path in pictures if path.stat().st_size > MOST_BYTES] == []


def widths_of_texts(picture):
    """Return the left and right end of each text of a picture of ideas in DejaVu Sans, with the words."""
    font = FontProperties(fname=f"{get_data_path()}/fonts/ttf/DejaVuSans.ttf")
    texts = re.findall(r'<text x="([\d.]+)".*? font-size="(\d+)" text-anchor="(\w+)">(.*?)</text>', picture)
    for x, size, anchor, words in texts:
        width = TextPath((0, 0), unescape(words), size=float(size), prop=font).get_extents().width
        left = float(x) - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
        yield left, left + width, words


def test_texts_of_pictures_fit_in_a_wide_font():
    """A browser without Helvetica and Arial takes DejaVu Sans, and cuts what lies outside the picture."""
    for path in sorted((DOCS / "images").glob("idea-*.svg")):
        outside = [words for left, right, words in widths_of_texts(path.read_text()) if left < 8 or right > 472]
        assert outside == [], path.name
    long = '<text x="400.0" y="9" font-size="13" text-anchor="start">as a copy of 3.7 bits</text>'
    assert max(right for _, right, _ in widths_of_texts(long)) > 480, "control"


def test_the_tree_names_every_package():
    tree = (ROOT / "CONTRIBUTING.md").read_text().partition("## Where things are")[2].partition("## ")[0]
    rooms = [path for path in (ROOT / "src" / "thinkalike").iterdir() if path.name[0] not in "_."]
    names = [path.stem for path in rooms if path.is_dir() or path.suffix == ".py"]
    assert len(names) > 20
    assert [name for name in names if name not in tree] == []


def without_shell(block):
    """Return a block of Python without its lines for a shell, which begin with ! or %."""
    return re.sub(r"^[!%].*(\n +.*)*$", "pass", block, flags=re.MULTILINE)


def test_examples_in_python_are_python_and_import_what_is_there():
    lost = []
    for block in (block for page in PAGES for block in pages.blocks(page.read_text(), "python")):
        for node in ast.walk(ast.parse(without_shell(block))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("thinkalike"):
                lost += [each.name for each in node.names if not hasattr(import_module(node.module), each.name)]
    assert lost == []


def former_names_in(code):
    """Return the strings of a block of Python that are former names of columns, of tables or of numbers."""
    names = {former.removesuffix(".csv") for renamed in FORMER_COLUMNS.values() for former in renamed.values()}
    strings = [node.value for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Constant)]
    return [each for each in strings if isinstance(each, str) and re.sub(r"_(low|high)$", "", each) in names]


def test_examples_in_python_ask_for_columns_by_their_present_names():
    """A column that was renamed is a KeyError in a tutorial, and only slow tests run those."""
    blocks = [(page, block) for page in PAGES for block in pages.blocks(page.read_text(), "python")]
    lost = [(pages.name_of(page), former_names_in(without_shell(block))) for page, block in blocks]
    assert [each for each in lost if each[1]] == []
    assert former_names_in('table[["penalty", "reading_low"]]') == ["reading_low"], "control"


def unknown_keywords(code):
    """Return the keywords of calls in a script that the function of this package, imported by name, lacks."""
    nodes = list(ast.walk(ast.parse(code)))
    imports = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.module]
    own = [node for node in imports if node.module.partition(".")[0] == "thinkalike"]
    origin = {each.asname or each.name: (node.module, each.name) for node in own for each in node.names}
    unknown = []
    for call in (node for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        if call.func.id in origin:
            module, name = origin[call.func.id]
            parameters = inspect.signature(getattr(import_module(module), name)).parameters
            if not any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
                unknown += [each.arg for each in call.keywords if each.arg and each.arg not in parameters]
    return unknown


def can_be_imported(file):
    """Whether contrib is there, or the script does without it."""
    return pages.SOURCE.exists() or "thinkalike.contrib" not in file.read_text()


def test_scripts_call_functions_by_their_present_keywords():
    """A keyword that was renamed is a TypeError in a script, and few tests run those."""
    files = [file for folder in ("docs", "benchmarks", "examples") for file in (ROOT / folder).rglob("*.py")]
    lost = {file.name: unknown_keywords(file.read_text()) for file in files if can_be_imported(file)}
    assert {name: keywords for name, keywords in lost.items() if keywords} == {}
    assert unknown_keywords("from thinkalike import diff as f\nf(a, b, likeness=1, outputs=2)") == ["likeness"], (
        "control"
    )


class ArgumentsAccepted(Exception):
    """The parser of a script has accepted its command line."""


def refusal(script, words, capsys, has_gpu=True):
    """Run a script until its parser has read a command line, and return what the parser refuses it with, if it does."""

    def parse_and_stop(self, *given):
        parse_args(self, *given)
        raise ArgumentsAccepted

    parse_args = argparse.ArgumentParser.parse_args
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(argparse.ArgumentParser, "parse_args", parse_and_stop)
        patch.setattr("sys.argv", [str(script), *words])
        patch.setattr("torch.cuda.is_available", lambda: has_gpu)
        patch.syspath_prepend(script.parent)
        with pytest.raises((ArgumentsAccepted, SystemExit)):
            runpy.run_path(str(script), run_name="__main__")
    return capsys.readouterr().err.rpartition("error: ")[2]


@pytest.mark.parametrize("name", with_slow(["cka", "rsa"], "cka"))
def test_a_benchmark_refuses_a_device_that_this_machine_lacks(name, capsys):
    script = ROOT / "benchmarks" / f"{name}.py"
    words = ["--device", "cuda"]
    assert refusal(script, words, capsys) == "", "control"
    assert "torch finds no GPU" in refusal(script, words, capsys, has_gpu=False)
    assert "'mps' is not known; choose cpu or cuda" in refusal(script, ["--device", "mps"], capsys)


@pytest.mark.ci_slow
def test_scripts_accept_the_commands_of_pages(capsys):
    """Few tests run the benchmarks, which refuse an option that was renamed. The log keeps what it was."""
    of_today = [each for each in pages.commands() if not each.page.lower().startswith("docs/log")]
    refused = {}
    for command in of_today:
        file = ROOT / command.entry
        if file.suffix == ".py" and re.search("argparse|options_of", file.read_text()):
            for words in itertools.product(*(word.split("|") for word in command.words)):
                refused[command.page, command.entry, words] = refusal(file, words, capsys)
    assert len(refused) > 20
    assert {words: said for words, said in refused.items() if said} == {}
    cka = ROOT / "benchmarks" / "cka.py"
    said = refusal(cka, ["--rounds", "2", "--widths", "32"], capsys)
    assert said == "unrecognized arguments: --widths 32\n", "control"


@pytest.mark.ci_slow
def test_the_reference_is_as_its_script_makes_it():
    made = script("make_reference")
    for name, page in made.PAGES.items():
        assert page() == (made.HERE / name).read_text(), f"run python docs/make_reference.py: {name}"


def test_a_setting_without_a_meaning_is_refused():
    made = script("make_reference")
    read = made.comments_in(
        "class A:\n    b: int = 1  # one\n    # more\n    c: int = 2  # two\n    # three\n    d: int = 3\n"
    )
    assert dict(read) == {"b": "one more", "c": "two", "d": "three"}
    seed = next(each for each in made.dataclasses.fields(TrainConfig) if each.name == "seed")
    with pytest.raises(LookupError, match=r"TrainConfig\.seed has no comment"):
        made.row(TrainConfig, seed, "", "")


def test_every_public_name_is_in_the_reference():
    import thinkalike

    listed = re.findall(r"^::: [\w.]+\.(\w+)$", (DOCS / "reference" / "api.md").read_text(), re.MULTILINE)
    assert set(thinkalike.__all__) <= set(listed)


def test_notebooks_are_as_their_pages_say_and_hold_no_output():
    made = script("make_tutorials")
    for folder in filter(Path.is_dir, (made.TUTORIALS, made.QUESTIONS)):
        on_pages = sorted(page.stem for page in folder.glob("*.md") if page.stem != "README")
        assert sorted(path.stem for path in (folder / "notebooks").glob("*.ipynb")) == on_pages
        assert [name for name, page in made.PAGES.items() if page.parent == folder] == on_pages
        assert len(on_pages) > 2
    for name, page in made.PAGES.items():
        cells = json.loads(made.notebook_file(page).read_text())["cells"]
        code = [cell for cell in cells if cell["cell_type"] == "code"]
        assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
        assert "%pip install" in "".join(code[0]["source"]), "the first cell installs, as on Colab"
        blocks = [block.rstrip("\n") for block in pages.blocks(page.read_text(), "python")]
        assert ["".join(cell["source"]) for cell in code[1:]] == blocks, f"run python docs/make_tutorials.py: {name}"


def test_a_notebook_that_lies_elsewhere_links_to_the_repository():
    made = script("make_tutorials")
    for page in made.PAGES.values():
        cells = json.loads(made.notebook_file(page).read_text())["cells"]
        text = "".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
        relative = [target for target in pages.links(text) if not target.startswith(("https://", "#"))]
        assert relative == []
    page, root = made.TUTORIALS / "cka.md", "https://github.com/thinkalike/thinkalike/blob/main/docs"
    for target, path in (
        ("mlem.md", "tutorials/mlem.md"),
        ("../diff.md#the-answers", "diff.md#the-answers"),
        ("../how-to/faq.md", "how-to/faq.md"),
    ):
        assert made._with_links_to_the_repository(f"[a]({target})", page) == f"[a]({root}/{path})"
    for kept in ("[a](https://a.org/b)", "[a](#here)"):
        assert made._with_links_to_the_repository(kept, page) == kept


def test_a_page_shows_the_picture_of_a_cell_else_its_value_else_what_it_prints():
    made = script("make_tutorials")
    picture = SimpleNamespace(output_type="display_data", data={"image/png": "aGk=", "text/plain": "<Figure>"})
    value = SimpleNamespace(output_type="execute_result", data={"text/plain": "3"})
    printed = SimpleNamespace(output_type="stream", name="stdout", text="three\n")
    warned = SimpleNamespace(output_type="stream", name="stderr", text="warning\n")
    for outputs, shown in (
        ([warned, printed, value, picture], {"image/png": "aGk="}),
        ([warned, printed, value], {"text/plain": "3"}),
        ([warned, printed, printed], {"text/plain": "three\nthree\n"}),
        ([warned], {}),
    ):
        assert made.given(SimpleNamespace(outputs=outputs)) == shown


def test_a_page_breaks_long_sentences_and_keeps_tables():
    made = script("make_tutorials")
    table = "  layer  value\n0     1   0.50"
    sentence = 30 * "words " + "end."
    first, *further = made.wrapped(f"{table}\n{sentence}\n\nshort")
    assert [first, *further[:1]] == table.splitlines()
    assert further[-2:] == ["", "short"]
    assert max(map(len, further)) <= made.WIDTH < len(sentence)
    assert " ".join(further).split() == f"{table} {sentence} short".split()[2:]
    assert further[2].startswith("  words"), "lines after the first of a sentence are indented"


def test_releases_that_were_compromised_are_not_installed():
    requirement = re.search(r'"(pytorch-lightning[^"]*)"', (ROOT / "pyproject.toml").read_text())[1]
    asked = ["2.6.2", "2.6.3", "2.6.6"]
    assert list(Requirement(requirement).specifier.filter(asked)) == ["2.6.6"]


def test_no_table_of_benchmarks_is_older_than_its_code(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    bench, text = import_module("bench"), (ROOT / "benchmarks" / "RESULTS.md").read_text()
    assert bench.outdated(text) == [], "make bench makes them anew"
    assert set(bench.outdated(text.replace(", code ", ", code of old "))) == bench.BENCHMARKS.keys() - {"gpu"}
