"""The package as users get it: a wheel, imports that cost what a job needs, types, and minis as their cards say."""

import ast
import subprocess
import sys

import pytest

import thinkalike
from conftest import ROOT, composed
from installed_package import TAUGHT, card, installed, run  # noqa: F401
from thinkalike import open_result
from thinkalike.data.corpus import read_corpus
from thinkalike.data.stimuli import controlled_stimuli
from thinkalike.evaluation.held_out import held_out_loss
from thinkalike.models.checkpoints import ASSETS
from thinkalike.models.load import load_model

SMALL = [
    "stitch.steps=3",
    "stitch.warmup=1",
    "stitch.tokens_per_step=512",
    "data.evaluation_tokens=8192",
    "logger=none",
]


@pytest.mark.ci_slow
@pytest.mark.timeout(900)
def test_a_wheel_in_a_fresh_environment_runs_the_main_job(installed, tmp_path):  # noqa: F811
    done = run(installed, "train", "model=gelu-3l-mini", "model@target=solu-3l-mini", *SMALL, cwd=tmp_path)
    result = open_result(tmp_path / done.stdout.splitlines()[-1].removeprefix("results: "))
    assert list(result.details["source_layer"]) == [0, 1, 2]
    assert "train|analyze" in run(installed, cwd=tmp_path).stdout
    wrong = run(installed, "analyse", cwd=tmp_path, check=False)
    assert (wrong.returncode, wrong.stderr) == (1, "error: thinkalike analyse is not known; did you mean 'analyze'?\n")


JOB = """
import sys
sys.argv = ["analyze.py", "measure=loss", "data.evaluation_tokens=4096", "store=results"]
from thinkalike.cli import analyze
analyze()
print("there:", *[name for name in {heavy} if name in sys.modules])
"""


@pytest.mark.ci_slow
def test_a_job_imports_what_it_needs_and_no_more(tmp_path):
    heavy = ["pytorch_lightning", "torchmetrics", "matplotlib", "sklearn", "wandb", "torch"]
    code = JOB.format(heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "there: torch", "torch is the control"


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("script", "words", "said"),
    [
        ("train", ["--help"], ""),
        ("train", ["stitch=affine", "--help"], ""),
        ("train", ["stitch.steps=abc"], "stitch.steps=abc must be"),
        ("analyze", ["--help"], ""),
        ("analyze", ["measure=cka", "--help"], ""),
        ("diff", ["--help"], ""),
        ("results", ["--help"], ""),
        ("analyze", ["measure=cke"], "did you mean"),
        ("analyze", ["modle=gpt2"], "did you mean"),
    ],
)
def test_help_and_a_misspelt_word_need_no_torch(tmp_path, script, words, said):
    """Torch, transformers and pandas take seconds to import; what is counted does not depend on other work."""
    heavy = ["torch", "transformers", "pandas", "scipy"]
    code = f"import atexit, sys; sys.argv = ['{script}.py', *{words}]; from thinkalike.cli import COMMANDS; "
    code += f"atexit.register(lambda: print('there:', *[name for name in {heavy} if name in sys.modules])); "
    code += f"COMMANDS['{script}']()"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "there:", done.stderr
    assert said in done.stderr


@pytest.mark.ci_slow
def test_a_function_costs_little_more_than_torch_and_transformers(tmp_path):
    """Torch's compiler alone takes a second to import."""
    heavy = ["torch._dynamo", "sympy", "scipy", "sklearn", "matplotlib", "pytorch_lightning", "transformer_lens"]
    code = "import sys, thinkalike as ta; ta.compare; "
    code += f"print('there:', *[name for name in {[*heavy, 'torch']} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "there: torch", "torch is the control"


SRC = ROOT / "src"


def test_checkers_see_the_names_that_are_loaded():
    text = (SRC / "thinkalike" / "__init__.py").read_text()
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    seen = {alias.asname: node.module for node in imports for alias in node.names if alias.asname == alias.name}
    functions = [before.split()[-1] for before in text.split(" = takes_arrays(")[:-1]]
    assert {*seen, *functions} == {*thinkalike._HOME}
    assert all(getattr(thinkalike, name) is getattr(sys.modules[home], name) for name, home in seen.items())


def test_the_version_is_that_of_the_project():
    (line,) = (line for line in (ROOT / "pyproject.toml").read_text().splitlines() if line.startswith("version = "))
    assert thinkalike.__version__ == line.split('"')[1]
    assert "__version__" in dir(thinkalike)


GOOD = """
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from thinkalike import CKA, MLEM, FrozenModel, Result, cka, load_model, mutual_knn, open_result, plot, results, rsa
from thinkalike import compare, diff, loss, mlem, ruler, stitch, trajectory
from thinkalike import Compare, Diff, Job, Loss, Mlem, Rsa, Ruler, Trajectory, run
from thinkalike.jobs import Stitch
from thinkalike.measures import Estimate, rsa_estimate

X, Y = torch.randn(20, 4), np.ones((20, 5))
value: torch.Tensor = cka(X, Y, estimator="biased")
cka(pd.DataFrame(Y), [[1.0, 2.0]] * 20)
matrix: torch.Tensor = rsa([X, Y], others=torch.ones(2, 20, 4))
estimate: Estimate = rsa_estimate([X], groups=["a", "b"] * 10, folds=5)
mutual_knn(X, Y, k=3, groups=np.arange(20))
metric = CKA(1, 1)
metric.update([X], [Y])
metric.compute().distance().value.item()
figure, axes = plot(metric.compute())
MLEM(alpha=1.0).fit(Y, X)
result: Result = open_result(Path("results"))
scalars: dict[str, float] = result.scalars
frame: pd.DataFrame = results("results")
model = load_model("gpt2")
result = stitch(model, "gpt2", texts=["a text"], kind="affine", layers=[[0, 1]], steps=60, store="results")
result = compare(X, model, measure=lambda x, y: 0.0, stimuli=frame, null=True)
result = mlem(model, stimuli=frame, features=["tense"], kinds={"tense": "nominal"})
result = rsa([model, {"low": Y}], stimuli="crossed", permutations=99)
result = diff("gpt2", Path("tuned"), margin={"kl": 0.01})
result = trajectory("run", steps=[1, 2])
result = ruler(model, "gpt2", texts=[Path("a.txt").read_text()], words=8192, budget="5min")
result = loss(model, texts="notes.txt", evaluation_tokens=2048, evaluation_share=0.5, budget="90s")
screen: str = str(result)
sentences: str = result.summary
first: pd.DataFrame = result.table
columns: pd.DataFrame = result.details
jobs: list[Job] = [
    Stitch(model, "gpt2", texts=["a text"], kind="affine", layers=[[0, 1]], steps=60),
    Compare(X, model, measure="mutual_knn", neighbours=5, stimuli=frame, null=True),
    Mlem(model, stimuli=frame, features=["tense"], kinds={"tense": "nominal"}),
    Rsa([model, {"low": Y}], stimuli="crossed", permutations=99),
    Diff("gpt2", Path("tuned"), margin={"kl": 0.01}),
    Loss("gpt2", texts="pydoc", evaluation_tokens=2048),
    Trajectory("run", steps=[1, 2], threads=1),
    Ruler(model, "gpt2", words=8192, budget="5min"),
]
kept: list[Result] = [run(job, store=Path("results"), force=True) for job in jobs]
html: str | None = result.save("mine")._repr_html_()
result.plot(ax=figure.gca())


def width(model: FrozenModel) -> int:
    return model.d_model
"""
BAD = {
    "cka(X, Y).scalar": "attr-defined",
    "stitch(model, step=60)": "call-arg",
    "compare(model, neighbours='5')": "arg-type",
    "Compare(model, neighbour=5)": "call-arg",
    "Diff('gpt2')": "call-arg",
    "ruler(model, words='8192')": "arg-type",
    "loss(model, steps=3)": "call-arg",
    "result.scalar": "attr-defined",
    "open_result(3)": "arg-type",
    "thinkalike.stich": "attr-defined",
    "thinkalike.__version__ + 1": "operator",
}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_users_file_is_checked(tmp_path):
    """Each line of BAD is an error of its kind, and no line of GOOD is one."""
    file = tmp_path / "user.py"
    file.write_text(GOOD + "\n\nimport thinkalike\n\n" + "\n".join(BAD) + "\n")
    first = file.read_text().splitlines().index(next(iter(BAD))) + 1
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", "--follow-imports=silent", str(file)]
    run = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env={"MYPYPATH": str(SRC), "PATH": ""})
    errors = [line for line in run.stdout.splitlines() if ": error: " in line]
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in errors}
    assert found == {first + number: kind for number, kind in enumerate(BAD.values())}, run.stdout


MINIS = sorted(path.parent.name for path in ASSETS.glob("*/config.json") if path.parent.name != TAUGHT)
GRAMMAR = [f"{kind}-mini{seed}" for kind in ("bert", "gpt2", "mamba") for seed in ("", "-s1")]
NEOX = ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"]
RETOKENISED = "gelu-3l-mini-v2k"
EXPECTED = ["gelu-3l-mini", "gelu-3l-mini-s1", "gelu-4l-mini", "solu-3l-mini", "solu-3l-mini-s1", "solu-4l-mini"]


def mini(name):
    return load_model(composed(f"model={name}").model)


@pytest.mark.parametrize(("names", "most"), [(EXPECTED, 12), ([RETOKENISED], 3), (NEOX, 10), (GRAMMAR, 6)])
def test_the_minis_are_there_and_small(names, most):
    assert set(names) <= set(MINIS)
    assert sum(path.stat().st_size for name in names for path in (ASSETS / name).iterdir()) < most * 1e6


@pytest.mark.parametrize("name", MINIS)
def test_a_mini_beats_word_frequencies_as_its_card_says(name):
    facts, text = card(name), (ASSETS / name / "README.md").read_text()
    assert facts["heldout"]["loss"] < facts["heldout"]["unigram_entropy"] - 1.5
    for value in (facts["heldout"]["loss"], facts["heldout"]["unigram_entropy"]):
        assert f"{value:.4f} nats" in text
    assert facts["training"]["command"] in text
    assert f"{facts['training']['tokens_seen']:,}" in text


def test_some_words_of_the_grammar_split_and_all_are_whole_again():
    model = mini("bert-mini")
    stimuli = controlled_stimuli(100)
    counts = [len(model.tokenizer.tokenize(word)) for word in stimuli.words]
    assert 0.1 < sum(count > 1 for count in counts) / len(counts) < 0.5
    encoded = model.tokenizer(stimuli.texts[0])["input_ids"]
    assert model.tokenizer.decode(encoded, skip_special_tokens=True).strip() == stimuli.texts[0]
    assert encoded[0] == model.tokenizer.cls_token_id
    assert encoded[-1] == model.tokenizer.sep_token_id


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "context", "options"),
    [
        *((name, 32, {"bos": True, "fit_tokens": 1}) for name in ("bert-mini", "gpt2-mini")),
        ("gelu-3l-mini", 256, {"bos": False, "fit_tokens": None}),
    ],
)
def test_a_card_is_recomputed_from_the_shipped_files(name, context, options, tmp_path):
    facts, model, config = card(name)["heldout"], mini(name), composed(f"model={name}", f"data.cache={tmp_path}")
    corpus = read_corpus(config.data, model.tokenizer, context, **options)
    if config.data.name == "stdlib" and corpus.fingerprint() != facts["tokens"]:
        pytest.skip("this Python has another standard library than the one that the card speaks of")
    again = held_out_loss(model, corpus)
    for key in ("loss", "loss_low", "loss_high", "unigram_entropy"):
        assert again[key] == pytest.approx(facts[key], abs=1e-3)
