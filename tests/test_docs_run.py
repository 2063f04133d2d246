"""The documentation runs: every command that needs no hub, the tutorials as notebooks, and the site."""

import doctest
import importlib.util
import os
import re
import shutil
import subprocess
import sys

import pytest
import torch

import pages
import tiny
from conftest import ROOT, of_core, smallest_words, with_slow
from pages import COMMANDS, DOCS, DOORS, script
from thinkalike.config import MEASURES
from thinkalike.training import optimizers

LONG = {"experiment", "task", "population", "pairs"}  # settings of jobs that take minutes
LONG_MEASURES = {"court", "atlas", "population", "steering", "probes"}
STITCHES = ["stitch.steps=2", "stitch.warmup=1", "stitch.tokens_per_step=256", "data.evaluation_tokens=4096"]
SMALL = {
    "train": STITCHES,
    # the stimuli are those of the page
    **{kind: [word for word in smallest_words(kind) if not word.startswith("stimuli.")] for kind in of_core(MEASURES)},
}  # of every job, so that it takes seconds


def settings(command):
    return dict(word.partition("=")[::2] for word in command.overrides)


def kind_of(command):
    given = settings(command)
    return next((given[key] for key in ("experiment", "measure", "task") if key in given), command.entry)


def alone(command):
    """Whether a command needs no hub, and no file that its page does not make."""
    given = settings(command)
    models = re.findall(r"[\w.-]+", " ".join(given.get(key, "") for key in ("model", "model@target", "models")))
    known = all(name.endswith(("-mini", "-s1", "-v2k")) or name == "my-checkpoint" for name in models if name != ".")
    here = given.get("data") is None and given.get("population") in (None, "natural") and "trainer" not in given
    mini = "experiment" not in given or given.get("scale") == "mini"
    return command.entry in DOORS and known and here and mini and given.get("stimuli") != "conllu"


def runs(command):
    """Whether a command that needs nothing is one of seconds where its sizes are small."""
    given = settings(command)
    quick = not LONG & set(given) and given.get("measure", "") not in LONG_MEASURES
    plain = not command.swept and "dry_run" not in given and not any("logger" in key for key in given)
    return alone(command) and quick and plain


RUN = [command for command in COMMANDS if runs(command)]


@pytest.fixture(scope="module")
def workplace(tmp_path_factory):
    """A folder with all files that the commands name: tables of stimuli, plugins, and a checkpoint."""
    folder = tmp_path_factory.mktemp("workplace")
    files = [DOCS / name for name in ("guide/stimuli.md", "contrib/subjects.md")]
    texts = {str(file.relative_to(DOCS)): file.read_text() for file in files if not pages.is_missing(file)}
    (folder / "trees.conllu").write_text(pages.blocks(texts["guide/stimuli.md"], "conllu")[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for name, text in texts.items():
            doctest.DocTestRunner().run(doctest.DocTestParser().get_doctest(text, {}, name, None, 0))
    (folder / "mine" / "stitch").mkdir(parents=True)
    commands = (DOCS / "reference" / "commands.md").read_text()
    for name in ("mine/quick.yaml", "mine/stitch/brief.yaml"):
        (folder / name).write_text(pages.blocks(commands, f'yaml title="{name}"')[0])
    for block in pages.blocks((DOCS / "how-to" / "plugins.md").read_text(), "python"):
        if re.match(r"# my_\w+\.py", block):
            (folder / block.splitlines()[0].removeprefix("# ")).write_text(block)
    tiny.write_checkpoint("gpt2", folder / "my-checkpoint")
    return folder


def test_the_commands_that_run_are_many_and_of_every_kind():
    kinds = {settings(command).get("measure", command.entry) for command in RUN}
    assert kinds >= {"train", "cka", "mutual_knn", "mlem", "rsa", "r2", "procrustes", "loss"}
    assert len(RUN) > 30


def called(command):
    """Return the name of a test."""
    return f"{command.entry} {' '.join(command.words)}"[:80]


def smaller(command):
    """Return the words of a command, and those that make it small, as far as it does not say them itself."""
    given = {word.partition("=")[0] for word in command.words}
    small = [word for word in SMALL.get(kind_of(command), []) if word.partition("=")[0] not in given]
    if "activations" in given:  # all stimuli are compared, and they are few
        small = []
    if "stitch=least_squares" in command.words:  # which has no rate
        small.remove("stitch.warmup=1")
    return [*command.words, *small]


@pytest.mark.slow
@pytest.mark.parametrize("command", RUN, ids=called)
def test_a_command_of_a_page_runs(command, cli, workplace, tmp_path):
    shutil.copytree(workplace, tmp_path, dirs_exist_ok=True)
    words = smaller(command)
    if "conditional_on" in " ".join(command.words):
        words = [word.replace("per_batch=256", "per_batch=2048") for word in words]
    done = cli(f"{command.entry}.py", *words, "threads=1", "logger=none", f"store={tmp_path}/results")
    assert done.status == 0, done.stderr
    assert done.stdout.splitlines()[-1].startswith("results: ")


def needs(*packages):
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}: pip install -e '.[docs]'")


IN_CI = ("mlem", "notebook", "recordings")  # the tutorials that continuous integration runs: a minute and a half
TUTORIALS = sorted(path.stem for path in (DOCS / "tutorials").glob("*.md") if path.stem != "README")


@pytest.mark.slow
@pytest.mark.timeout(1800)
@needs("nbclient", "ipykernel", "jupytext")
@pytest.mark.parametrize("name", with_slow(TUTORIALS, *IN_CI))
def test_a_tutorial_runs_and_gives_what_its_page_shows(name, monkeypatch, tmp_path):
    """Numbers may differ by a tenth, or by a few hundredths, as another machine rounds otherwise."""
    monkeypatch.setenv("PATH", f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("THINKALIKE_CACHE", str(tmp_path))
    made = script("make_tutorials")
    values = made.values_of(made.run(made.notebook(made.PAGES[name])))
    page = made.PAGES[name].read_text()
    shown = [found[0].rpartition("```text\n")[2] if "```text" in found[0] else "" for found in made.CELL.finditer(page)]
    assert len(shown) == len(values)
    for found, value in zip(made.CELL.finditer(page), values, strict=True):
        assert "image/png" in value or not found[2]
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


@pytest.mark.slow
def test_a_stitch_trains_with_lightning_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, further = pages.blocks((DOCS / "how-to" / "lightning.md").read_text(), "python")
    names = {}
    exec(code.replace("steps=40", "steps=3").replace("config.stitch.tokens_per_step", "512"), names)
    assert names["module"].curve.isfinite().all()
    assert not torch.equal(names["phi"].map.weight, torch.zeros_like(names["phi"].map.weight)), "it has moved"
    exec(further, names)
    assert names["trainer"].callback_metrics["cka"] > 0.9
    assert (names["student"].mlem.weights != 1).all(), "its weights have learned"
    assert doctest.testmod(optimizers).attempted > 5
    assert doctest.testmod(optimizers).failed == 0


@pytest.mark.slow
@needs("mkdocs", "material", "mkdocstrings")
def test_the_site_builds_strictly_and_asks_nothing_of_a_network(tmp_path):
    """It is built by a process without a network but loopback."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=240)
    assert built.returncode == 0, built.stdout + built.stderr
    found = {str(path.relative_to(tmp_path)): path.read_text() for path in tmp_path.rglob("*.html")}
    assert {"index.html", "tutorials/notebook.html", "reference/settings.html", "reference/api.html"} <= set(found)
    loaded = re.compile(r"<(?:script|img|iframe)[^>]+src=\"?(https?:)?//|<link[^>]+rel=\"?stylesheet\"?[^>]+https?://")
    assert [name for name, text in found.items() if loaded.search(text)] == []
    assert "thinkalike.measures.metric" in found["reference/api.html"]
