"""The experiments on measure=cka: their jobs, that statistics find what was planted, and what they refuse."""

import re

import pytest
import torch

import hub
import tiny
from conftest import composed, results_in
from stores import finish
from thinkalike.config import ModelConfig
from thinkalike.contrib.papers import brown2023_layers as experiments
from thinkalike.contrib.papers.claims import VERDICTS
from thinkalike.contrib.papers.experiment import Case, Model
from thinkalike.store import Result


@pytest.fixture
def small(text_files, tmp_path):
    """The words of a small experiment."""
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_share=0.5", f"data.cache={tmp_path}/cache"]
    return ["measure.batches=20", "measure.tokens_per_batch=128", *data, f"store={tmp_path}/results"]


def planted(folder, cells, noise=0.01) -> Result:
    """A finished job whose CKA cells (l, m) have this noise, and scatter without each part of the documents."""
    cells = torch.as_tensor(cells, dtype=torch.float64)
    scatter = torch.randn(10, *cells.shape, generator=torch.Generator().manual_seed(1)).double()
    without = cells + noise / 20**0.5 * scatter / 3
    arrays = {"value": cells.numpy(), "without": without.numpy()}
    return finish(folder, "cka", f"{len(results_in(folder))}", {}, arrays=arrays)


def case(folder, **cells) -> Case:
    """An experiment whose jobs are planted; a pair of models is called by the names of both."""
    return Case(
        composed("experiment=brown2023/figure9", entry="analyze"),
        [],
        {f"{pair[0]}, {pair[1]}": planted(folder, values) for pair, values in cells.items()},
    )


def test_a_statistic_is_that_of_the_cells_with_an_interval(tmp_path):
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
    assert (claim.verdict, claim.units, claim.tolerance) == ("holds", "10 parts of the documents", "above 0")
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
    models = [Model(ModelConfig(name=name)) for name in "ab"]
    config = composed("experiment=brown2023/figure4", entry="analyze")
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
        models = [Model(ModelConfig(name=name)) for name in names]
        return experiments._grows(Case(composed("experiment=brown2023/figure10", entry="analyze"), models, made))

    growing = verdict("a", 0.3, 0.5, 0.7)
    assert growing.verdict == "holds"
    assert "all 2 together (Bonferroni)" in growing.numbers
    assert verdict("b", 0.3, 0.5, 0.4).verdict == "does not hold"
    assert verdict("c", 0.3, 0.5, 0.5).verdict == "undecided"


def test_statistics_of_cells_are_what_their_names_say():
    cells = torch.rand(4, 4, dtype=torch.float64)
    assert float(experiments.one_sidedness(cells + cells.T)) == pytest.approx(0)
    assert float(experiments.one_sidedness(cells)) == pytest.approx(-float(experiments.one_sidedness(cells.T)))
    assert float(experiments.one_sidedness(torch.ones(4, 4).triu(1))) == 1
    assert float(experiments.off_diagonal(torch.eye(5))) == 0
    assert float(experiments.off_diagonal(1 - torch.eye(5))) == 1


@pytest.mark.slow
@pytest.mark.ci_slow
def test_given_models_replace_the_experiments_own(cli, small, minis):
    given = [f"model.path={minis}/a", "model.name=a", f"target.path={minis}/wide", "target.name=wide"]
    result = cli("analyze.py", "experiment=brown2023/figure10", *small, *given).result
    assert set(zip(result.table["source"], result.table["target"], strict=True)) == {("a", "a"), ("wide", "wide")}
    assert list(result.provenance["parts"]) == ["a, a", "wide, wide"]
    claims = list(result.tables["claims"]["claim"])
    assert claims == ["the likeness of a model's layers grows with scale", "wide has blocks: early, middle, last"]


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


CELLS = {"figure9": 6 * 16, "figure4": 3 * 9, "figure5": 3 * 16, "figure3": 7 * 16, "figure10": 4 * 16}  # of all jobs


@pytest.mark.slow
@pytest.mark.parametrize("figure", CELLS)
@pytest.mark.drawn
def test_an_experiment_runs_at_paper_scale_against_a_hub(figure, repositories, cli, small):
    with hub.serve(repositories) as (endpoint, asked):
        result = cli("analyze.py", f"experiment=brown2023/{figure}", *small, endpoint=endpoint).result
    assert any(path.endswith((".safetensors", ".pth")) for path in asked)
    assert len(result.table) == CELLS[figure]
    assert set(result.tables["claims"]["verdict"]) <= set(VERDICTS)
    assert (result.folder / "figures" / "cka.png").exists()


@pytest.mark.slow
@pytest.mark.ci_slow
def test_table_1_at_paper_scale_against_a_hub(repositories, cli):
    with hub.serve(repositories) as (endpoint, asked):
        table = cli("analyze.py", "experiment=brown2023/table1", endpoint=endpoint).result.table.set_index("model")
    assert len(table) == 8
    assert table.loc["pythia-1b-deduped", "d_head"] == 32 // 4
    assert not any(path.endswith(".safetensors") for path in asked)
