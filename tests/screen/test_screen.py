"""Everything that a job prints fits the screen, and what it takes is said before it starts."""

import io
import json
import math
import re
from dataclasses import replace

import pandas as pd
import pytest
import torch
from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as Plain
from rich.text import Text
from torch import nn
from transformers.pytorch_utils import Conv1D

import tiny
from conftest import with_slow
from counted_work import counted
from planted_screens import PLANTED, UNBOUNDED, at, check_dry_run, check_it_fits, check_its_form, tokens
from thinkalike.config import MEASURES, TASKS, ModelConfig, TrainerConfig, compose_job
from thinkalike.forecast import (
    SHARE_OF_PEAK,
    Forecast,
    ForecastJob,
    forecast,
    hours_on,
    precision_of,
    show,
    summary_lines,
)
from thinkalike.instruments import instrument
from thinkalike.instruments.layer_pairs.screen import answer
from thinkalike.models.load import load_model
from thinkalike.models.operations import Operations, operations
from thinkalike.models.shapes import Shape, shape_of
from thinkalike.screen import (
    Column,
    Table,
    drawn_lines,
    number_column,
    number_text,
    screen_width,
    show_map,
    show_table,
    stacked,
    text_column,
    widths,
)
from thinkalike.training.recipe import StitchConfig, StitchJob
from thinkalike.training.stitching import Fit, StitchTraining


def forecast_of_two() -> Forecast:
    names, sizes = ("gpt2-mini", "pythia-6.9b-deduped"), (32, 4096, 50432, 6_857_302_016, 1.4e10, 2048)
    shapes = {name: Shape(name, *sizes, Operations((1.0,), (0.0,), 0.0)) for name in names}
    passes = [shape.passes("forward passes", 1.5e9, 512) for shape in shapes.values()]
    unsized = {"organisation/model-of-unknown-size": None}
    done, unknown = (ForecastJob(name, name == "done", unsized, "float32") for name in ("done", "odd"))
    label = "cka: gpt2-mini, pythia-6.9b-deduped"
    return Forecast([[ForecastJob(label, False, shapes, "float32", passes)], [done], [unknown]])


def everything() -> dict:
    """What prints, by name."""
    kinds = {own.kind: own for own in map(instrument, (*TASKS.values(), *MEASURES.values()))}
    shown = {name: (kinds[name.split()[0]], make) for name, make in PLANTED.items()}
    prints = {name: (lambda each=each, make=make: each.show(make())) for name, (each, make) in shown.items()}
    prints["dry_run"] = lambda: show(forecast_of_two(), 1e12)
    return prints


EVERYTHING = everything()
SCREENS = {name: prints for name, prints in EVERYTHING.items() if name != "dry_run"}


@pytest.mark.parametrize("name", EVERYTHING)
def test_what_is_printed_fits_and_no_word_is_broken(name, monkeypatch, capsys):
    check_it_fits(EVERYTHING[name], monkeypatch, capsys)


def test_a_table_that_breaks_words_would_be_seen(monkeypatch, capsys):
    """The positive control: the layout of the library alone, which folds words."""

    def folded():
        table = Plain()
        for _ in range(3):
            table.add_column("configuration")
        table.add_row(*["organisation/solu-3l-mini"] * 3)
        Console(width=screen_width()).print(table)

    whole = tokens(at(UNBOUNDED, folded, monkeypatch, capsys))
    assert tokens(at(60, folded, monkeypatch, capsys)) != whole


@pytest.mark.parametrize("name", [*SCREENS])
def test_a_screen_is_at_most_eight_columns_and_80_by_30(name, monkeypatch, capsys, caplog):
    check_its_form(SCREENS[name], monkeypatch, capsys, caplog)


@pytest.mark.parametrize("is_distance", [False, True])
def test_a_screen_map_is_darkest_at_the_closest_cells(is_distance, monkeypatch, capsys):
    values = pd.DataFrame([[0.0, 0.5, 1.0], [1.0, 0.5, 0.0]])
    shown = at(80, lambda: show_map(values, is_distance), monkeypatch, capsys).splitlines()
    cells = [line[4:] for line in shown[1:3]]
    wanted = ["   ▒▒▒██●", "██●▒▒▒   "]
    assert cells == (wanted[::-1] if is_distance else wanted)
    assert "1.000" in shown[3]


def test_what_fits_is_one_table_and_each_column_as_wide_as_it_is():
    columns = [number_column("layer", [0, 10]), number_column("stitching loss", [0.1, 0.2], ".4f")]
    assert stacked(columns, 1, 30) == [columns]
    assert widths(columns, 30) == [5, 14]
    assert widths(columns, 22) == [5, 10], "the header wraps"


@pytest.mark.parametrize(("follows", "names"), [("", ["abc", "ade"]), ("d", ["ab", "acd", "ae"])])
def test_a_wide_table_is_split_with_the_key_in_each_part(follows, names):
    columns = [number_column(name, ["+0.12345678"], follows=name == follows) for name in "abcde"]
    assert ["".join(column.name for column in block) for block in stacked(columns, 1, 50)] == names


def test_brackets_are_no_markup(monkeypatch, capsys):
    table = Table("[b]layers[/b]", [text_column("[red]", ["layers=[[0,0],[1,1]]"])])
    shown = at(80, lambda: show_table(table), monkeypatch, capsys)
    assert all(text in shown for text in ("[b]layers[/b]", "[red]", "layers=[[0,0],[1,1]]"))


def test_a_long_word_is_broken_where_the_table_would_not_fit(monkeypatch, capsys):
    word = "layers=[" + ",".join(f"[{layer},{layer}]" for layer in range(40)) + "]"
    table = Table("jobs", [text_column("job", ["a"]), text_column("settings", [word])])
    shown = at(60, lambda: show_table(table), monkeypatch, capsys)
    assert max(map(cell_len, shown.splitlines())) <= 60
    assert word in re.sub(r"[\s┃━┏┳┓┡╇┩│─└┴┘]", "", shown)


@pytest.mark.ci_slow
@pytest.mark.parametrize("script", ["train.py", "analyze.py"])
def test_help_lists_the_options_of_every_group(script, cli):
    shown = cli(script, "--help").stdout
    assert not re.search(r"^(?!python |[\w/]+: ).{81}", shown, re.MULTILINE), "but for commands and lists of options"
    words = set(shown.replace(",", " ").split())
    assert {"gelu-3l-mini", "second_order_cosine", "least_squares"} <= words
    assert not {word for word in words if word.endswith("schema")}


PUBLISHED = {  # parameters; of Pythia from table 1 of Biderman et al. 2023
    "pythia-12b-deduped": 11_846_072_320,
    "gpt2": 124.4e6,
    "bert-base-uncased": 109.5e6,
    "mamba-130m": 129.1e6,
    "llama-3.2-1b": 1236e6,
}


def local(checkpoints, family):
    return ModelConfig(name="local", path=str(checkpoints[family]))


@pytest.mark.parametrize("family", with_slow([*tiny.FAMILIES, "gelu-3l-mini"], "gpt_neox"))
def test_a_shape_is_that_of_the_model_that_is_loaded(checkpoints, family):
    config = local(checkpoints, family) if family in tiny.FAMILIES else compose_job("train", [f"model={family}"]).model
    shape, model = shape_of(config), load_model(config)
    assert (shape.layers, shape.width, shape.vocabulary) == (model.n_layers, model.d_model, model.vocabulary)
    assert shape.parameters == model.parameters()
    assert shape.bytes == 4 * shape.parameters
    assert shape.operations == operations(model)
    assert shape.context == model.context
    assert shape_of(replace(config, dtype="bfloat16")).bytes == 2 * shape.parameters


@pytest.mark.ci_slow
@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_published_sizes_give_published_parameters(name, parameters):
    shape = shape_of(compose_job("train", [f"model={name}"]).model)
    assert shape.parameters == pytest.approx(parameters, rel=2e-3)
    if name.startswith("pythia"):
        assert shape.parameters - 2 * shape.vocabulary * shape.width == 11_327_027_200


def test_a_model_of_transformer_lens_has_a_shape_when_it_is_in_the_cache_too(tmp_path, monkeypatch):
    """The hub's cache then has a config.json in TransformerLens's own format."""
    config = compose_job("train", ["model=solu-3l"]).model
    repository = tmp_path / f"models--{config.hub_id.replace('/', '--')}"
    tiny.write_legacy(repository / "snapshots" / "0123", "some/tokenizer")
    (repository / "refs").mkdir()
    (repository / "refs" / (config.revision or "main")).write_text("0123")
    before = shape_of(config)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    assert before is not None
    assert shape_of(config) == before


def test_a_model_without_known_sizes_has_no_shape(tmp_path):
    assert shape_of(ModelConfig(name="hub", hub_id="some/where")) is None
    for content in ("{damaged", json.dumps({"model_type": "no such thing"})):
        (tmp_path / "config.json").write_text(content)
        assert shape_of(ModelConfig(name="local", path=str(tmp_path))) is None


@pytest.mark.parametrize("family", ["native", "gpt_neox", "gpt2", "bert", "mamba"])
def test_a_pass_takes_its_weights_and_its_attention(checkpoints, family):
    """Twice the weights of the linear maps of the blocks for a token; 4 d for each token that it attends to."""
    model = tiny.frozen() if family == "native" else load_model(local(checkpoints, family))
    found = operations(model)
    maps = [part for part in model.blocks[0].modules() if isinstance(part, nn.Linear | Conv1D)]
    weights = sum(2.0 * part.weight.numel() for part in maps)
    assert found.blocks == pytest.approx([weights] * model.n_layers, rel=0.15 if family == "mamba" else 1e-12)
    assert found.attention == (0.0 if family == "mamba" else 4.0 * model.d_model,) * model.n_layers
    tokens = torch.randint(300, (2, 24))
    assert tokens.numel() * found.full(24) == pytest.approx(counted(lambda: model.full(tokens)), rel=0.02)


STITCHES = [{"lr_multiples": [0.5]}, {"floor": False}, {"loss": "kl"}]


@pytest.mark.parametrize("stitch", with_slow(STITCHES, *STITCHES[1:]))
def test_the_passes_of_a_training_are_those_of_its_steps(checkpoints, stitch):
    """But for the last token of each row, which predicts nothing, and the maps themselves."""
    paths = [local(checkpoints, name) for name in ("gpt_neox", "gpt2")]
    own = StitchConfig(steps=3, warmup=1, tokens_per_step=256, **stitch)
    plan = forecast(StitchJob(model=paths[0], target=paths[1], stitch=own), looks_up=False)
    training = [each for each, _ in plan.passes if each.phase == "training"]
    models, pairs = [load_model(path) for path in paths], [(layer, layer) for layer in range(4)]
    beside = [Fit(models[0], *pair, rate) for rate in own.lr_multiples for pair in pairs]
    beside += [Fit(models[1], depth, depth) for _, depth in pairs] if own.floor else []
    rows = torch.randint(300, (8, 64))
    module = StitchTraining(*models, pairs, own, beside=beside)
    step = counted(lambda: torch.stack([each.mean() for each in module.losses(rows[:4])]).sum().backward())
    maps = 4 * 32 * 32 * 256 * len(module.stitches)
    assert sum(each.flops for each in training) == pytest.approx(3 * (step - maps), rel=0.1)
    assert {each.tokens for each in training} == {768}


def test_jobs_of_one_pass_share_the_passes_of_their_models():
    words = ["measure=cka", "models=[gelu-3l-mini,solu-3l-mini,gelu-4l-mini]"]
    plan = forecast(compose_job("analyze", words), looks_up=False)
    assert len(plan.jobs) == 3
    assert [each.model.name for each, _ in plan.passes] == ["gelu-3l-mini", "solu-3l-mini", "gelu-4l-mini"]
    assert 2 * plan.flops == sum(each.flops for job in plan.jobs for each in job.passes)


def test_hours_are_those_of_the_peak_in_the_precision_of_the_job():
    shape = Shape("a", 1, 1, 1, 1, 4.0, 8, Operations((1e9,), (0.0,), 0.0))
    hour = shape.passes("report", 312e3 * SHARE_OF_PEAK * 3600, 8)
    assert hours_on("A100", hour, "bfloat16") == pytest.approx(1)
    assert hours_on("A100", replace(hour, times=3), "TF32") == pytest.approx(6)
    assert precision_of("bfloat16", TrainerConfig()) == "bfloat16"
    assert precision_of("float32", TrainerConfig(matmul="high")) == "TF32"
    assert precision_of("float32", TrainerConfig()) == "float32"


def slow(*case):
    return pytest.param(*case, marks=pytest.mark.slow)


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("script", "words", "seen"),
    [
        ("train.py", (), "training"),
        slow("analyze.py", ("measure=rsa", "model=gpt2-mini"), " on this machine, as small steps of it were timed"),
        slow("analyze.py", ("measure=cka", "model=gemma-3-1b-pt"), "without the jobs of gemma-3-1b-pt"),
    ],
)
def test_a_dry_run_prints_tables_and_writes_nothing(cli, tmp_path, script, words, seen):
    check_dry_run(cli, tmp_path, script, words, seen)


@pytest.mark.ci_slow
def test_what_the_store_has_is_not_to_do(cli, minis, text_files, tmp_path):
    words = ["measure=loss", f"model.path={minis}/a", "model.context=32", "data=text", "data.evaluation_tokens=2048"]
    words += [f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.4", f"store={tmp_path}/store"]
    cli("analyze.py", *words)
    plan = forecast(compose_job("analyze", words))
    assert [job.is_stored for job in plan.jobs] == [True]
    assert summary_lines(plan)[0].startswith("0 of 1 jobs to do: 0 FLOPs")
    assert cli("analyze.py", *words, "dry_run=true").status == 0
    assert not forecast(compose_job("analyze", [*words, "force=true"])).jobs[0].is_stored


@pytest.mark.parametrize("ruled", [False, True])
def test_a_table_is_drawn_as_rich_draws_it(ruled):
    """Rich takes a millisecond for a row, of which lists of results have thousands."""
    cells = [["a", "bb cc " * 9, "漢字 テスト"], ["", "[[0,0],[1,2]]", "long" * 20], ["1.5", "-2\n3", "x  y"]]
    names = ["model", "what was asked", "mean of penalty"]
    block = [Column(name, column, wraps=i < 2) for i, (name, column) in enumerate(zip(names, cells, strict=True))]
    rooms = [12, 30, 7]
    drawn = Plain(box=box.HEAVY_HEAD, show_lines=ruled)
    for column, room in zip(block, rooms, strict=True):
        drawn.add_column(column.name, justify="left" if column.wraps else "right", width=room, overflow="fold")
    for row in zip(*cells, strict=True):
        drawn.add_row(*map(Text, row))
    written = io.StringIO()
    Console(file=written, width=80, highlight=False).print(drawn, crop=False)
    assert list(drawn_lines(block, rooms, ruled)) == written.getvalue().splitlines()


def pairs_of_layers(values: dict[tuple[int, int], float], target: str = "b", **columns) -> pd.DataFrame:
    """The rows of layer pairs, with intervals of 0.01 to both sides."""
    layers = pd.DataFrame(list(values), columns=["source_layer", "target_layer"])
    table = layers.assign(source="a", target=target, value=list(values.values()))
    return table.assign(low=table["value"] - 0.01, high=table["value"] + 0.01, **columns)


SQUARE = {(0, 0): 0.5, (0, 1): 0.1, (1, 0): 0.2, (1, 1): 0.8}
ANSWERS = {
    "two models": (
        pairs_of_layers(SQUARE),
        False,
        "At equal relative depth, a and b are most similar at layer 1 (CKA 0.800 [0.790, 0.810]) and least similar at "
        "layer 0 (0.500 [0.490, 0.510]); of all 4 pairs, layer 1 has the highest value, beyond the next, layer 0 "
        "(0.500 [0.490, 0.510]; the intervals do not overlap).",
    ),
    "pairs of equal depth alone": (
        pairs_of_layers({(0, 0): 0.5, (1, 1): 0.8, (2, 2): 0.79}),
        False,
        "; the most similar is not shown to be beyond the next, layer 2 (0.790 [0.780, 0.800]; the intervals overlap).",
    ),
    "the highest elsewhere": (
        pairs_of_layers({**SQUARE, (1, 0): 0.81}),
        False,
        "; of all 4 pairs, layer 1 of a and layer 0 of b have the highest value (0.810 [0.800, 0.820]), not shown to "
        "be beyond the next, layer 1 (0.800 [0.790, 0.810]; the intervals overlap).",
    ),
    "the lowest distance": (
        pairs_of_layers(SQUARE),
        True,
        "; of all 4 pairs, layer 0 of a and layer 1 of b have the lowest value (0.100 [0.090, 0.110]), beyond the "
        "next, layer 1 of a and layer 0 of b (0.200 [0.190, 0.210]; the intervals do not overlap).",
    ),
    "no intervals": (
        pairs_of_layers({**SQUARE, (1, 0): 0.9}).assign(low=math.nan, high=math.nan),
        False,
        "; of all 4 pairs, layer 1 of a and layer 0 of b have the highest value (0.900).",
    ),
    "a distance": (pairs_of_layers(SQUARE), True, "most similar at layer 0 (CKA 0.500 [0.490, 0.510]) and least"),
    "values that are shown as equal": (
        pairs_of_layers({**SQUARE, (0, 0): 0.99996, (1, 1): 0.99999}),
        False,
        "CKA of a and b is 1.000 [0.990, 1.010] at every layer",
    ),
    "beside chance": (pairs_of_layers(SQUARE, null_mean=0.03), False, "(CKA 0.800 [0.790, 0.810], by chance 0.030)"),
    "layers of unequal numbers": (
        pairs_of_layers({(0, 0): 0.5, (0, 1): 0.1, (0, 2): 0.1, (1, 0): 0.2, (1, 1): 0.3, (1, 2): 0.8}),
        False,
        "most similar at layer 1 of a and layer 2 of b (CKA 0.800",
    ),
    "one pair": (pairs_of_layers({(3, 3): 0.5}), False, "At layer 3, CKA of a and b is 0.500 [0.490, 0.510]."),
    "one model": (
        pairs_of_layers({(0, 1): 0.9, (1, 2): 0.7, (0, 0): 1.0, (1, 1): 1.0, (2, 2): 1.0}, target="a"),
        False,
        "From one layer of a to the next, states change most between layers 1 and 2 (CKA 0.700 [0.690, 0.710]) and "
        "least between layers 0 and 1 (0.900 [0.890, 0.910]).",
    ),
    "a layer and itself": (pairs_of_layers({(1, 1): 1.0}, target="a"), False, ""),
}


CONTROLS = {
    "beyond chance": (
        {"null_mean": 0.03, "p_corrected": 0.01},
        (),
        "; the most similar is beyond chance (p = 0.01 among",
    ),
    "within chance": (
        {"null_mean": 0.03, "p_corrected": 0.2},
        (),
        "; the most similar is not beyond chance (p = 0.2 among",
    ),
    "few documents": (
        {"null_mean": 0.03},
        (),
        "; whether that is beyond chance cannot be tested, as documents are few.",
    ),
    "not computed": (
        {},
        ("by chance", "by mixing"),
        "; whether that is more than by chance or by mixing was not computed.",
    ),
    "nothing to compute": ({}, (), "layer 0 (0.500 [0.490, 0.510]; the intervals do not overlap)."),
}


@pytest.mark.parametrize("name", CONTROLS)
def test_the_first_sentence_says_whether_the_most_similar_layers_are_beyond_chance(name):
    columns, uncomputed, said = CONTROLS[name]
    sentence = answer("CKA", pairs_of_layers(SQUARE, **columns), False, uncomputed, "documents are few")
    assert said in sentence
    assert sentence.count(". ") == 0, "it is one sentence"


def test_of_a_distance_the_first_sentence_asks_for_less_than_chance():
    uncomputed = ["by chance"]
    assert "whether that is less (more similar) than by chance" in answer(
        "distance", pairs_of_layers(SQUARE), True, uncomputed
    )


@pytest.mark.parametrize("name", ANSWERS)
def test_a_measure_of_layer_pairs_says_where_models_are_most_and_least_similar(name):
    table, is_distance, said = ANSWERS[name]
    sentence = answer("CKA", table, is_distance)
    assert said in sentence
    assert bool(said) == bool(sentence)


@pytest.mark.parametrize(
    ("value", "form", "said"),
    [
        *((113.4, ".2g", "110"), (-113.4, "+.2g", "-110"), (113.4, "+.2g", "+110"), (1234567, ".3g", "1,230,000")),
        *((3e7, ".2g", "3e+07"), (0.00012, ".2g", "0.00012"), (float("inf"), ".2g", "inf"), (99, ".2g", "99")),
    ],
)
def test_a_rounded_number_is_written_out(value, form, said):
    assert number_text(value, form) == said


@pytest.mark.parametrize(
    ("value", "form", "said"), [(-0.001, ".2f", "0.00"), (-0.001, "+.2f", "0.00"), (-0.01, ".2f", "-0.01")]
)
def test_what_rounds_to_zero_has_no_sign(value, form, said):
    assert number_text(value, form) == said


@pytest.mark.parametrize(
    ("value", "form", "said"),
    [(187.3, ".2g", "190"), (18730, "+.2g", "+19,000"), (0.00021, ".1g", "0.0002"), (18.7, ".2g", "19")],
)
def test_a_large_number_has_no_exponent(value, form, said):
    assert number_text(value, form) == said


@pytest.mark.parametrize(
    ("less_is_closer", "marked", "column"),
    [(False, "most similar", 1), (True, "most similar", 0), (True, "least similar", 1)],
)
def test_a_map_marks_what_its_scale_says(less_is_closer, marked, column, capsys):
    show_map(pd.DataFrame({"a": [0.1], "b": [0.5]}, index=["layer"]), less_is_closer, marked)
    row = capsys.readouterr().out.splitlines()[1]
    cells = row.removeprefix("  layer ")
    assert cells[2::3].index("●") == column
    assert cells[3 * column] == "█"
