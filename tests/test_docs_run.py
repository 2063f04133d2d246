"""The documentation runs: every command that needs no hub, the tutorials as notebooks, and the site in a browser."""

from __future__ import annotations

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pytest

import pages
import tiny
from conftest import ROOT
from test_docs import COMMANDS, DOCS, SCHEMAS, script
from test_report_browser import chromium  # noqa: F401, a fixture
from thinkalike.measures import layer_measures

# ------------------------------------------------------------------------------------------------------------ commands

LONG = {"experiment", "task", "population", "pairs"}  # settings of jobs that take minutes
LONG_MEASURES = {"court", "atlas", "population", "asymmetry", "steering", "probes", "transfer_maps"}
FEW = ["measure.batches=2", "measure.tokens_per_batch=64"]
SMALL = {
    "train": ["stitch.steps=2", "stitch.warmup=1", "stitch.tokens_per_step=256", "data.report_tokens=4096"],
    "mlem": ["measure.folds=2", "measure.permutations=1", "measure.ceilings=0"],
    "r2": [*FEW, "measure.fit_batches=4"],
    "loss": ["data.report_tokens=4096"],
    "rsa": [],
    **dict.fromkeys(layer_measures(), FEW),
}  # of every job, so that it takes seconds


def settings(command):
    return dict(word.partition("=")[::2] for word in command.overrides)


def runs(command):
    """Whether a command needs no hub, and is one of seconds where its sizes are small."""
    given = settings(command)
    models = re.findall(r"[\w.-]+", " ".join(given.get(key, "") for key in ("model", "model@target", "models")))
    known = all(name.endswith(("-mini", "-s1", "-v2k")) or name == "my-checkpoint" for name in models if name != ".")
    quick = not LONG & set(given) and given.get("measure", "") not in LONG_MEASURES and given.get("data") is None
    alone = not command.swept and "dry_run" not in given and not any("logger" in key for key in given)
    return command.door in SCHEMAS and known and quick and alone and given.get("stimuli") != "conllu"


RUN = [command for command in COMMANDS if runs(command)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with all files that the commands name: those that docs/stimuli.md makes, plugins, and a checkpoint."""
    folder = tmp_path_factory.mktemp("workplace")
    page = (DOCS / "stimuli.md").read_text()
    (folder / "trees.conllu").write_text(pages.blocks(page, "conllu")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(page, {}, "stimuli.md", None, 0))
    for block in pages.blocks((DOCS / "plugins.md").read_text(), "python"):
        if block.startswith("# my_"):
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
    tiny.write_checkpoint("gpt2", folder / "my-checkpoint")
    return folder


def test_the_commands_that_run_are_many_and_of_every_kind():
    kinds = {settings(command).get("measure", command.door) for command in RUN}
    assert kinds >= {"train", "cka", "mknn", "mlem", "rsa", "r2", "procrustes", "loss"}
    assert len(RUN) > 30


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=lambda command: f"{command.door} {' '.join(command.words)}"[:80])
def test_a_command_of_a_page_runs(command, door, workplace, tmp_path):
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    kind = settings(command).get("measure", command.door)
    threads = "trainer.threads=1" if command.door == "train" else "threads=1"
    small = [word for word in SMALL.get(kind, []) if word.partition("=")[0] not in {"measure.neighbours"}]
    if "given" in " ".join(command.words):
        small = ["measure.batches=2", "measure.tokens_per_batch=2048", *small[2:]]
    done = door(f"{command.door}.py", *command.words, *small, threads, "logger=none", f"store={tmp_path}/results")
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("results: ")


# ----------------------------------------------------------------------------------------------------------- tutorials


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install -e '.[docs]'")


TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.md") if path.stem != "README")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs("nbclient", "ipykernel", "jupytext")
@pytest.mark.parametrize("name", TUTORIALS)
def test_a_tutorial_runs_and_gives_what_its_page_shows(name, monkeypatch, tmp_path):
    """Numbers may differ by a tenth, or by a few hundredths, as another machine rounds otherwise."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    made = script("make_tutorials")
    values = made.values_of(made.run(made.notebook(name)))
    page = (made.FOLDER / f"{name}.md").read_text()
    shown = [found[0].rpartition("```text\n")[2] if "```text" in found[0] else "" for found in made.CELL.finditer(page)]
    assert len(shown) == len(values)
    for text, value in zip(shown, values, strict=True):
        if text and "image/png" not in value:
            same(text.removesuffix("\n").removesuffix("```"), value["text/plain"])


NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")


def same(shown, given):
    """Compare two texts: words are the same, and numbers with fractions nearly so."""
    assert NUMBER.sub("", shown).split() == NUMBER.sub("", given).split()
    numbers = [[float(each) for each in NUMBER.findall(text)] for text in (shown, given)]
    assert numbers[0] == pytest.approx(numbers[1], rel=0.1, abs=0.05)


def test_what_differs_is_seen():
    same("penalty 0.205", "penalty  0.211")
    for other in ("penalty 0.4", "loss 0.205", "penalty 0.205 0.1"):
        with pytest.raises(AssertionError):
            same("penalty 0.205", other)


# ---------------------------------------------------------------------------------------------------------------- site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built strictly by mkdocs in a process without a network but loopback."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.mark.slow
@needs("mkdocs", "material", "mkdocstrings")
def test_the_site_builds_strictly_and_asks_nothing_of_a_network(site):
    found = sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))
    assert {"index.html", "tutorials/first-hour.html", "reference/settings.html", "reference/api.html"} <= set(found)
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(https?:)?//|<link[^>]+rel=\"?stylesheet\"?[^>]+https?://")
    assert [name for name in found if loaded.search((site / name).read_text())] == []
    assert "thinkalike.measures.cka" in (site / "reference" / "api.html").read_text()


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.mark.slow
@pytest.mark.browser
@needs("mkdocs", "material", "mkdocstrings")
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_open_without_an_error_or_a_request_elsewhere(site, chromium, width):  # noqa: F811
    server = ThreadingHTTPServer(("127.0.0.1", 0), lambda *args: Quiet(*args, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address, wrong = f"http://127.0.0.1:{server.server_port}/", []
    page = chromium.new_page(viewport={"width": width, "height": 900})
    page.on("console", lambda message: wrong.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on(
        "request", lambda request: None if request.url.startswith((address, "data:")) else wrong.append(request.url)
    )
    for name in ("index", "tutorials/first-hour", "reference/settings", "reference/api", "reference/gallery"):
        page.goto(f"{address}{name}.html")
        assert page.locator("h1").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth") <= width, f"{name} scrolls sideways"
    page.goto(f"{address}index.html?q=penalty")
    page.get_by_text("matching documents").wait_for()
    page.close()
    server.shutdown()
    assert wrong == []
