"""measure=cka and the experiments on it: what the door leaves, and that statistics find what was planted."""

import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import hub
import tiny
from conftest import composed, kill_and_resume, results_in
from thinkalike import papers
from thinkalike.config import ModelConfig
from thinkalike.errors import ConfigError
from thinkalike.measures import CKA, alignment, kernel_alignment
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.papers import brown2023_cka as experiments
from thinkalike.papers.claims import VERDICTS
from thinkalike.papers.experiment import Case, Model, job_of
from thinkalike.store import Job, Result, write_state


@pytest.fixture
def words(text_files, tmp_path):
    """The command line of a small job, models apart."""
    rows = ["model.context=32", "target.context=32", "measure.tokens_per_batch=128"]
    small = ["measure=cka", "measure.batches=20", *rows]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.5", f"data.cache={tmp_path}/cache"]
    return [*small, *data, f"store={tmp_path}/results"]


@pytest.fixture
def pair(minis):
    return [f"model.path={minis}/a", f"target.path={minis}/wide", "model.name=a", "target.name=wide"]


def test_a_job_leaves_the_cka_of_the_two_models_residuals(door, words, pair, minis, tmp_path):
    result = door("analyze.py", *words, *pair).result
    table = result.table
    assert len(table) == 3 * 16
    assert [path.name for path in result.figures] == ["cka.png", "cka.svg"]
    (cache,) = (tmp_path / "cache" / "tokens").iterdir()
    rows = load_file(cache)["report.tokens"]
    assert rows.shape == (80, 32)
    configs = [ModelConfig(name="x", family="native", mini=True, path=f"{minis}/{name}") for name in ("a", "wide")]
    models = [load_model(config) for config in configs]
    metric = CKA(4, 4)
    for part in rows.long().split(4):
        metric.update(*([model.head(part, layer) for layer in range(4)] for model in models))
    expected = metric.compute()
    across = table[(table["source"] == "a") & (table["target"] == "wide")]
    for column in ("value", "low", "high"):
        assert np.abs(across[column].to_numpy() - getattr(expected, column).flatten().numpy()).max() < 1e-6
    assert np.abs(result.arrays["within_target"] - expected.within_target.value.numpy()).max() < 1e-6
    assert result.scalars["distance"] == pytest.approx(float(expected.distance().value), abs=1e-6)
    assert result.provenance["data"]["report_tokens"] == 2560
    assert {"versions", "seed", "models", "wall_seconds"} <= set(result.provenance)
    assert [model["name"] for model in result.provenance["models"]] == ["a", "wide"]
    assert "already done" in door("analyze.py", *words, *pair).stderr


def test_a_model_with_itself_has_ones_on_the_diagonal(door, words, minis):
    itself = [f"model.path={minis}/a", f"target.path={minis}/a"]
    table = door("analyze.py", *words, *itself, "measure.embed=true").result.table
    assert len(table) == 25
    diagonal = table[table["source_layer"] == table["target_layer"]]
    assert sorted(diagonal["source_layer"]) == [-1, 0, 1, 2, 3]
    assert (diagonal["value"] - 1).abs().max() < 1e-6


@pytest.mark.parametrize(("both", "models"), [(("a", "a"), 1), (("a", "b"), 2)])
def test_a_model_with_itself_runs_once_and_its_grams_are_taken_once(both, models, door, words, minis, monkeypatch):
    passes, layers = [], []
    residuals, hsics = FrozenModel.residuals, kernel_alignment.linear_statistics

    def run(self, tokens, *rest):
        passes.append(tuple(tokens.shape))
        return residuals(self, tokens, *rest)

    def compared(rows, *rest):
        layers.append(len(rows))
        return hsics(rows, *rest)

    monkeypatch.setattr(FrozenModel, "residuals", run)
    monkeypatch.setattr(kernel_alignment, "linear_statistics", compared)
    paths = [f"model.path={minis}/{both[0]}", f"target.path={minis}/{both[1]}"]
    names = [f"model.name={both[0]}", f"target.name={both[1]}"]
    result = door("analyze.py", *words, *paths, *names).result
    assert result.scalars["batches"] == 20
    assert passes.count((4, 32)) == 20 * models
    assert layers == [tiny.LAYERS * models] * 20


OPTIONS = {
    "biased": ["measure.estimator=biased"],
    "mean of ratios": ["measure.aggregate=mean_of_ratios"],
    "rbf": ["measure.kernel=rbf"],
    "mean": ["measure.flatten=mean", "measure.tokens_per_batch=256"],
    "first tokens": ["measure.skip_first_tokens=3"],
    "special tokens": ["measure.skip_special_tokens=true"],
    "bfloat16": ["model.dtype=bfloat16", "target.dtype=bfloat16"],
}


@pytest.mark.slow
def test_every_option_changes_the_numbers(door, words, pair):
    seen = set()
    for more in ([], *OPTIONS.values()):
        result = door("analyze.py", *words, *pair, "measure.batches=8", *more).result
        seen.add(round(float(result.arrays["value"][1, 2]), 9))
    assert len(seen) == 1 + len(OPTIONS)


def test_a_null_stands_beside_the_values(door, words, pair):
    across = door("analyze.py", *words, *pair, "measure.null=true", "measure.permutations=9").result.table.iloc[:16]
    assert across["null"].abs().mean() < across["value"].mean()
    expected = (across["value"] - across["null"]) / (1 - across["null"])
    assert (across["calibrated"] - expected).abs().max() < 1e-9
    assert across["p"].between(0.1, 1).all()
    assert (across["p_of_largest"] >= across["p"]).all()


def test_a_job_stops_when_its_intervals_are_narrow_enough(door, words, pair):
    more = ["measure.batches=30", "measure.stop_at_width=10"]
    done = door("analyze.py", *words, *pair, *more)
    assert "after 10 batches every interval is narrower than 10" in done.stderr
    assert len(done.result.arrays["hsics"]) == 10


def test_less_text_than_asked_for_is_said(door, words, pair, text_files):
    few = [f"data.files=[{text_files}/0*.txt]", "measure.batches=100000"]
    done = door("analyze.py", *words, *pair, *few)
    assert len(done.result.table) == 3 * 16
    assert "batches of the 100000 asked for: there is no more text" in done.stderr


@pytest.mark.slow
def test_models_of_different_tokenizers_are_compared_by_words(door, words, checkpoints, minis, tmp_path):
    folder = tmp_path / "gpt2"
    folder.mkdir()
    for path in checkpoints["gpt2"].iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tiny.tokenizer(290).save_pretrained(folder)
    other = ["target.name=local", "target.mini=false", "target.family=auto", f"target.path={folder}"]
    both = [f"model.path={minis}/a", *other]
    done = door("analyze.py", *words, *both)
    assert "have different tokenizers: compared word by word" in done.stderr
    assert done.result.table["value"].between(-1, 1 + 1e-6).all()
    refused = door("analyze.py", *words, *both, "measure.level=token")
    assert "have different tokenizers" in refused.error
    refused = door("analyze.py", *words, *both, "measure.skip_first_tokens=1")
    assert "words are compared one by one" in refused.error
    refused = door("analyze.py", *words, *both, "measure.flatten=mean")
    assert "words are compared one by one, so measure.flatten=mean is for tokens only" in refused.error


def test_a_transformer_is_compared_with_mamba(door, words, checkpoints):
    both = [f"{side}={value}" for side, value in (("model", "local"), ("model@target", "local"))]
    paths = [f"model.path={checkpoints['gpt_neox']}", f"target.path={checkpoints['mamba']}"]
    table = door("analyze.py", *words, *both, *paths).result.table
    assert table[["source", "target"]].drop_duplicates().to_numpy().tolist() == [
        ["gpt_neox", "mamba"],
        ["gpt_neox", "gpt_neox"],
        ["mamba", "mamba"],
    ]
    assert table["value"].between(-1, 1 + 1e-6).all()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("batches=0", r"measure\.batches"),
        ("tokens_per_batch=-1", r"measure\.tokens_per_batch"),
        ("skip_first_tokens=-1", r"measure\.skip_first_tokens"),
        ("level=letter", r"measure\.level=letter is not known"),
    ],
)
def test_settings_that_cannot_be_are_refused(setting, message):
    with pytest.raises(ConfigError, match=message):
        composed("measure=cka", f"measure.{setting}", door="analyze")


def test_too_little_text_for_a_batch_of_words_is_said(door, words, pair):
    refused = door("analyze.py", *words, *pair, "measure.level=word", "measure.tokens_per_batch=20000")
    assert "too little text for one batch of 20000 words" in refused.error


@pytest.mark.slow
def test_a_damaged_state_is_named_and_left_for_the_user_to_delete(door, words, pair):
    folder = door("analyze.py", *words, *pair).result.folder
    job = Job(str(folder.parents[1]), "cka", folder.name)
    shutil.rmtree(folder)
    state = write_state(job.states, "batches", {"batches": 5})
    state.write_bytes(b"half a file")
    assert f"error: the state {state} is damaged (" in door("analyze.py", *words, *pair).error
    state.unlink()
    assert door("analyze.py", *words, *pair).result.folder == folder


def test_a_layer_without_variance_is_named_with_its_model(door, words, minis, tmp_path):
    flat = tiny.write_mini(tmp_path / "flat")
    weights = load_file(flat / "model.safetensors")
    weights["pos.weight"][:] = weights["pos.weight"][0].clone()
    weights["tok_embed.weight"][:] = weights["tok_embed.weight"][0].clone()
    save_file(weights, flat / "model.safetensors")
    refused = door("analyze.py", *words, f"model.path={minis}/a", f"target.path={flat}", "target.name=flat")
    assert "flat (target): target layer 0: all rows are the same" in refused.error
    assert not (tmp_path / "results").exists()


def test_one_massive_token_is_warned_of(door, words, minis, tmp_path):
    massive = tiny.write_mini(tmp_path / "massive")
    weights = load_file(massive / "model.safetensors")
    weights["pos.weight"][0] += 3000
    save_file(weights, massive / "model.safetensors")
    itself = [f"model.path={massive}", f"target.path={massive}"]
    done = door("analyze.py", *words, *itself, "measure.tokens_per_batch=32", "measure.batches=80")
    assert done.result.folder.exists()
    assert "gelu-3l-mini layer 0: in some batch one token carries" in done.stderr
    without = door("analyze.py", *words, *itself, "measure.skip_first_tokens=1")
    assert without.result.folder.exists()
    assert "carries" not in without.stderr


@pytest.mark.slow
def test_a_killed_job_goes_on_to_the_same_values(door, words, pair):
    long = ["measure.batches=220", "measure.tokens_per_batch=32"]
    killed, whole = kill_and_resume(door, "analyze.py", *words, *pair, *long, state="batches")
    assert (killed.folder / "table.csv").read_bytes() == (whole.folder / "table.csv").read_bytes()


# ----------------------------------------------------------------------------------------------------- the experiments

PAPER = {"figure3": 4, "figure4": 1, "figure5": 1, "figure9": 3, "figure10": 4}


@pytest.mark.slow
@pytest.mark.parametrize("scale", ["paper", "mini"])
@pytest.mark.parametrize("figure", PAPER)
def test_an_experiment_composes_its_jobs_at_both_scales(figure, scale):
    config = composed(f"experiment=brown2023/{figure}", f"scale={scale}", door="analyze")
    experiment = papers.experiment_named(f"brown2023/{figure}")
    parts = experiment.parts(experiment.case(config))
    asked = [job_of(config, part) for part in parts]
    assert len(asked) == len({part.label for part in parts}) == PAPER[figure]
    assert [part.label for part in parts] == [f"{job.model.name}, {job.target.name}" for job in asked]
    assert {job.measure.kind for job in asked} == {"cka"}
    assert {job.measure.batches for job in asked} == {{"paper": 1000, "mini": 64}[scale]}
    assert all(job.model.mini == job.target.mini == (scale == "mini") for job in asked)
    if scale == "paper":
        assert {job.data.name for job in asked} <= {"pile-val", "c4-code"}


def planted(folder, cells, noise=0.01, batches=20) -> Result:
    """A finished job whose batches scatter about these CKA cells (l, m)."""
    cells = torch.as_tensor(cells, dtype=torch.float64)
    depth, width = cells.shape
    whole = torch.eye(depth + width, dtype=torch.float64)
    whole[:depth, depth:], whole[depth:, :depth] = cells, cells.T
    scatter = torch.randn(batches, depth + width, depth + width, generator=torch.Generator().manual_seed(1)).double()
    hsics = whole + noise * (scatter + scatter.mT) / 2
    job = Job(str(folder), "cka", f"{len(results_in(folder))}")
    with job.running():
        job.write({}, {}, {}, {"value": cells.numpy(), "hsics": hsics.numpy()})
        return job.appear()


def case(folder, **cells) -> Case:
    """An experiment whose jobs are planted; a pair of models is called by the names of both."""
    return Case(
        composed("experiment=brown2023/figure9", door="analyze"),
        [],
        {f"{pair[0]}, {pair[1]}": planted(folder, values) for pair, values in cells.items()},
    )


def test_a_statistic_is_that_of_the_cells_and_its_interval_covers_it(tmp_path):
    cells = torch.rand(4, 4, dtype=torch.float64)
    found = experiments.jackknifed(lambda parts: parts[0].mean((-2, -1)), [planted(tmp_path, cells)])
    assert found.low < cells.mean() < found.high
    assert found.high - found.low < 0.02


def test_blocks_that_are_planted_are_found(tmp_path):
    block = torch.tensor([0, 1, 1, 1, 1, 1, 1, 2])
    cells = torch.where(block[:, None] == block, 0.9, 0.3)
    assert float(experiments.block_structure(cells)) == pytest.approx(0.6)
    both = case(tmp_path, aa=cells, bb=torch.full((8, 8), 0.5))
    assert experiments._blocks(both, "a").verdict == "holds"
    assert experiments._blocks(both, "b").verdict == "undecided"
    reversed_ = case(tmp_path, cc=torch.where(block[:, None] == block, 0.3, 0.9))
    assert experiments._blocks(reversed_, "c").verdict == "does not hold"


def test_an_odd_one_out_that_is_planted_is_found(tmp_path):
    high, low = torch.full((4, 6), 0.8), torch.full((4, 6), 0.8)
    low[1:3, 1:5] = 0.5
    both, alike, odd = case(tmp_path, ab=high, cb=low), [("a", "b")], [("c", "b")]
    claim = experiments._odd_one_out("", both, alike, odd)
    assert (claim.verdict, claim.units, claim.tolerance) == ("holds", "20 batches", "above 0")
    assert 0 < claim.smallest_effect < 0.05
    assert "+0.3" in claim.numbers
    assert re.search(r"minus that of \(c, b\): \+0\.\d{4} \[\+0\.\d{4}, \+0\.\d{4}\]$", claim.numbers)
    assert experiments._odd_one_out("", both, odd, alike).verdict == "does not hold"


def test_early_layers_that_are_alike_are_found(tmp_path):
    cells = torch.full((4, 4), 0.5)
    assert experiments._early(case(tmp_path, ab=cells), [("a", "b")]).verdict == "undecided"
    cells[0, 0] = 0.9
    assert experiments._early(case(tmp_path, cd=cells), [("c", "d")]).verdict == "holds"


TILTED = torch.full((4, 4), 0.5) + 0.1 * (torch.ones(4, 4).triu(1) - torch.ones(4, 4).tril(-1))


@pytest.mark.parametrize(
    ("cells", "noise", "verdict"),
    [
        (torch.full((4, 4), 0.5), 0.001, "holds"),
        (TILTED, 0.001, "does not hold"),
        (torch.full((4, 4), 0.5), 0.1, "undecided"),
    ],
)
def test_a_direction_of_cka_is_judged_by_its_interval(cells, noise, verdict, tmp_path):
    result = planted(tmp_path, cells, noise)
    models = [Model((), ModelConfig(name=name)) for name in "ab"]
    config = composed("experiment=brown2023/figure4", door="analyze")
    claim = experiments._tilt(Case(config, models, {"a, b": result}))
    assert claim.verdict == verdict
    assert claim.tolerance == "within 0.01 of 0"


def test_likeness_that_grows_is_judged_by_all_steps_together(tmp_path):
    def likeness(value):
        return torch.eye(4) + value * (1 - torch.eye(4))

    def verdict(folder, *values):
        names = "xyz"[: len(values)]
        made = {
            f"{name}, {name}": planted(tmp_path / folder, likeness(value))
            for name, value in zip(names, values, strict=True)
        }
        models = [Model((), ModelConfig(name=name)) for name in names]
        return experiments._grows(Case(composed("experiment=brown2023/figure10", door="analyze"), models, made))

    growing = verdict("a", 0.3, 0.5, 0.7)
    assert growing.verdict == "holds"
    assert "all 2 together (Bonferroni)" in growing.numbers
    assert verdict("b", 0.3, 0.5, 0.4).verdict == "does not hold"
    assert verdict("c", 0.3, 0.5, 0.5).verdict == "undecided"


def test_one_sidedness_is_zero_for_symmetric_cells_and_turns_its_sign():
    cells = torch.rand(4, 4, dtype=torch.float64)
    assert float(experiments.one_sidedness(cells + cells.T)) == pytest.approx(0)
    assert float(experiments.one_sidedness(cells)) == pytest.approx(-float(experiments.one_sidedness(cells.T)))
    assert float(experiments.one_sidedness(torch.ones(4, 4).triu(1))) == 1


def test_off_diagonal_leaves_the_diagonal_out():
    assert float(experiments.off_diagonal(torch.eye(5))) == 0
    assert float(experiments.off_diagonal(1 - torch.eye(5))) == 1


def test_alignment_of_the_kept_hsics_is_the_kept_value(tmp_path):
    found = planted(tmp_path, torch.rand(3, 4), noise=0)
    expected = torch.from_numpy(found.arrays["value"])
    torch.testing.assert_close(experiments.cells_of(found, lambda hsics: hsics.mean(0)), expected)
    assert alignment(torch.eye(3)).diagonal().tolist() == [1, 1, 1]


@pytest.mark.slow
def test_models_that_are_given_take_the_place_of_the_experiments_own(door, words, minis):
    own = [word for word in words if not word.startswith(("measure=", "model.", "target."))]
    given = [f"model.path={minis}/a", "model.name=a", f"target.path={minis}/wide", "target.name=wide"]
    result = door("analyze.py", "experiment=brown2023/figure10", *own, *given).result
    assert set(zip(result.table["source"], result.table["target"], strict=True)) == {("a", "a"), ("wide", "wide")}
    assert list(result.provenance["parts"]) == ["a, a", "wide, wide"]
    claims = list(result.tables["claims"]["claim"])
    assert claims == ["the likeness of a model's layers grows with scale", "wide has blocks: early, middle, last"]
    assert {"versions", "seed", "models", "wall_seconds"} <= set(result.provenance)


FIGURE_1 = "experiment=brown2023/figure1 is about solu-3l, gelu-3l, solu-4l, gelu-4l; it takes no others"
REFUSED = [
    ("figure1", ["model=gelu-3l-mini"], FIGURE_1),
    ("figure3", ["model.path=somewhere"], "pythia-6.9b-deduped; it takes no others"),
    ("figure1", ["model@target=gelu-3l-mini"], FIGURE_1),
    pytest.param("table1", ["model=gelu-3l-mini"], "pythia-12b-deduped; it takes no others", marks=pytest.mark.slow),
    ("figure6", ["measure=cka", "measure.batches=3"], "figure6 has no measure"),
    ("table1", ["measure=loss"], "table1 has no measure"),
    ("figure10", ["model=gelu-3l-mini"], "pythia-1b-deduped; it takes 2 by model= and model@target="),
    ("figure1", ["measure=cka"], "figure1 has no measure"),
    ("figure9", ["measure=rsa"], "figure9 is about measure=cka"),
    ("figure11", [], "figure11"),
]


@pytest.mark.parametrize(("figure", "more", "message"), REFUSED)
def test_what_an_experiment_has_not_is_refused_before_any_job(figure, more, message, door, tmp_path):
    refused = door("analyze.py", f"experiment=brown2023/{figure}", *more, f"store={tmp_path}/results")
    assert message in refused.error
    assert not results_in(tmp_path / "results")


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    """Tiny models under the names and in the formats of the paper's, with widths of their own."""
    root = tmp_path_factory.mktemp("hub")
    for number, size in enumerate(("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b")):
        width = 32 if number % 2 else 48
        tiny.write_checkpoint("gpt_neox", root / f"EleutherAI/pythia-{size}-deduped", hidden_size=width, seed=number)
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    for number, (name, activation) in enumerate((("SoLU", "solu_ln"), ("GELU", "gelu"))):
        for depth in (3, 4):
            folder = root / f"NeelNanda/{name}_{depth}L512W_C4_Code"
            tiny.write_legacy(folder, "NeelNanda/tokenizer", seed=number, n_layers=depth, act_fn=activation)
    return root


EXPERIMENTS = [
    ("figure9", 6 * 16),  # three pairs, and three models within
    ("figure4", 3 * 9),
    pytest.param("figure5", 3 * 16, marks=pytest.mark.slow),
    pytest.param("figure3", (3 + 4) * 16, marks=pytest.mark.slow),
    pytest.param("figure10", 4 * 16, marks=pytest.mark.slow),
]


@pytest.mark.slow
@pytest.mark.parametrize(("figure", "cells"), EXPERIMENTS)
def test_an_experiment_runs_at_paper_scale_against_a_hub(figure, cells, repositories, door, words):
    small = [word for word in words if not word.startswith(("measure=", "model.", "target."))]
    with hub.serve(repositories) as (endpoint, asked):
        result = door("analyze.py", f"experiment=brown2023/{figure}", *small, endpoint=endpoint).result
    assert any(path.endswith((".safetensors", ".pth")) for path in asked)
    assert len(result.table) == cells
    assert set(result.tables["claims"]["verdict"]) <= set(VERDICTS)
    assert (result.folder / "figures" / "cka.png").exists()


@pytest.mark.slow
def test_table_1_at_paper_scale_against_a_hub(repositories, door):
    with hub.serve(repositories) as (endpoint, asked):
        table = door("analyze.py", "experiment=brown2023/table1", endpoint=endpoint).result.table.set_index("model")
    assert len(table) == 8
    assert table.loc["pythia-1b-deduped", "d_head"] == 32 // 4
    assert not any(path.endswith(".safetensors") for path in asked)


@pytest.mark.slow
def test_table_1_reads_configurations_alone(door):
    table = door("analyze.py", "experiment=brown2023/table1", "scale=mini").result.table.set_index("model")
    assert table["d_head"].to_dict() == {
        "neox-3l-mini": 32, "neox-4l-mini": 32, "neox-5l-mini": 32, "neox-5l-odd-mini": 8, "neox-6l-mini": 32
    }  # fmt: skip
    assert table.loc["neox-5l-odd-mini", "rotary"] == 2
    refused = door("analyze.py", "experiment=brown2023/table1", endpoint=hub.NOWHERE)
    assert "does not answer" in refused.error
