"""The commands: the first job, what a user sees, what is left in the store, and what bad input says."""

import json
import math
import shutil

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import tiny
from conftest import composed, kill_and_resume, untrained, with_ci_slow, with_slow
from thinkalike.config.values import key_settings
from thinkalike.instruments.stitching.screen import (
    meaning_of_columns,
    sentence_of_controls,
    sentence_of_direction,
    sentence_of_floor,
    show_asymmetry,
    text_and_losses,
    tokens_of_fitting,
)
from thinkalike.instruments.stitching.table import bytes_by_document
from thinkalike.models.layer_choice import pairs_of_layers


@pytest.mark.drawn
def test_a_job_prints_its_table_and_leaves_a_whole_result(cli, small_stitching, tmp_path):
    small_stitching += ["layers=[[0,0],[3,3]]"]
    done = cli("train.py", *small_stitching)
    result, folder = done.result, done.result.folder
    assert folder.parent == tmp_path / "results" / "stitching"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no .partial
    expected = {"config.yaml", "result.json", "table.csv", "arrays.npz", "stitch.safetensors", "figures", "curves"}
    expected |= {"details.csv", "manifest.json"}
    assert {path.name for path in folder.iterdir()} == expected
    assert [path.name for path in result.figures] == ["penalty.png", "penalty.svg"]
    table = result.tables["details"]
    assert (table["penalty"] - (table["stitching_loss"] - table["target_loss"])).abs().max() < 1e-9
    assert ((table["penalty_low"] <= table["penalty"]) & (table["penalty"] <= table["penalty_high"])).all()
    assert all(word in done.stdout for word in ("penalty", "token-mean", "bits", "left", "0→0", "3→3"))
    assert result.provenance["data"]["report_documents"] >= 2
    assert len(result.provenance["models"]) == 2

    again = cli("train.py", *small_stitching)
    assert (again.status, again.stdout) == (0, done.stdout), "it is printed again"
    assert "already done" in again.stderr
    stamp = (folder / "result.json").stat().st_mtime_ns
    forced = cli("train.py", *small_stitching, "force=true").result
    assert (folder / "result.json").stat().st_mtime_ns > stamp
    assert table.equals(forced.tables["details"])  # the same numbers, to the bit


@pytest.mark.slow
def test_identity_and_other_layers(cli, small_stitching):
    more = ["stitch=identity", "layers=[[0,1],[2,2]]"]
    result = cli("train.py", *untrained(small_stitching, "identity"), *more).result
    table = result.details
    assert list(zip(table["source_layer"], table["target_layer"], strict=True)) == [(0, 1), (2, 2)]
    assert table["penalty"].equals(table["identity_penalty"])
    assert not (result.folder / "stitch.safetensors").exists()


KINDS = ["orthogonal", "least_squares", "procrustes", "reduced_rank", "bias", "low_rank"]


@pytest.mark.parametrize("kind", with_ci_slow(KINDS, "orthogonal", "least_squares", "bias"))
def test_every_kind_of_stitch_is_reported_beside_its_controls(cli, small_stitching, kind):
    more = ["stitch.controls=true", "layers=[[0,0],[2,3]]", *(["stitch.rank=4"] if "rank" in kind else [])]
    small = small_stitching if kind in ("orthogonal", "low_rank") else untrained(small_stitching)
    done = cli("train.py", *small, f"stitch={kind}", *more)
    result = done.result
    table = result.tables["details"]
    for control in ("identity", "least_squares", "procrustes", "bias", "shuffled", "random_source"):
        assert table[f"{control}_penalty"].notna().all()
        assert (table[f"{control}_penalty_low"] <= table[f"{control}_penalty"]).all()
    if kind in ("least_squares", "procrustes", "bias"):
        assert (table["penalty"] - table[f"{kind}_penalty"]).abs().max() < 1e-6
    assert (table["shuffled_penalty"] != table["penalty"]).all()
    assert table["top1_agreement"].between(0, 1).all()
    assert "loss and penalty, nats per token" in done.stdout
    bits = table["stitching_loss"] * table["bits_per_byte"].iloc[0] / table["stitching_loss"].iloc[0]
    assert (bits - table["bits_per_byte"]).abs().max() < 1e-9
    assert (result.folder / "stitch.safetensors").exists()


@pytest.mark.ci_slow
def test_a_start_from_a_closed_form_is_where_training_begins(cli, small_stitching):
    still = ["stitch.lr=1e-12", "stitch.weight_decay=0"]
    tables = []
    trained = [*small_stitching, "stitch=affine", "stitch.init=least_squares", *still]
    for words in (trained, [*untrained(small_stitching), "stitch=least_squares"]):
        tables.append(cli("train.py", *words).result.details)
    assert (tables[0]["penalty"] - tables[1]["penalty"]).abs().max() < 1e-4


def test_bytes_are_those_of_the_text_of_each_document():
    texts = ["abc dé " * 30, "", "été"]
    tokens = [tiny.tokenizer().encode(text) for text in texts]
    rows = torch.tensor([[0, *tokens[0], *tokens[2]]])
    owners = torch.tensor([[0] * (1 + len(tokens[0])) + [2] * len(tokens[2])])
    found = bytes_by_document(tiny.tokenizer(), rows, owners)
    assert found.tolist() == [len(text.encode()) for text in texts]


@pytest.mark.ci_slow
def test_a_killed_run_goes_on_to_the_same_table(cli, small_stitching):
    long = ["stitch.steps=30", "trainer.checkpoint_every=5", "threads=1"]
    killed, whole = kill_and_resume(cli, "train.py", *small_stitching, *long, state="training")
    for name in ("table.csv", "details.csv", "stitch.safetensors"):
        assert (killed.folder / name).read_bytes() == (whole.folder / name).read_bytes()


NATIVE = ("target.mini=true", "target.family=native")
BAD = {
    "layer out of range": (["layers=[[0,0],[4,1]]"], "[4,1] is out of range; the source has layers 0 to 3"),
    "tokenizers that read another text": (
        ["model=gelu-3l-mini", "model.path={gpt2}", "model.mini=false", "model.family=auto", *NATIVE],
        "reads 'Case' as 'case' and gelu-3l-mini[path=b] as 'Case', so their texts",
    ),
    "widths and identity": (["target.path={minis}/wide", "stitch=orthogonal"], "stitch=orthogonal needs equal widths"),
    "one document": (["data.files=[{tmp}/one.txt]"], "has too little text"),
    "unwritable store": (["store={tmp}/one.txt/results"], "cannot be written"),
    "procrustes into less": (
        ["model.path={minis}/wide", "stitch.init=procrustes"],
        "cannot go to a smaller width: gelu-3l-mini[path=wide] has 48",
    ),
    "too high a rank": (["stitch=low_rank", "stitch.rank=33"], "stitch.rank=33 is more than the smaller width"),
}
LOADING = ["tokenizers that read another text", "widths and identity", "procrustes into less", "too high a rank"]


@pytest.mark.parametrize("case", with_slow(BAD, *LOADING))
def test_bad_input_is_one_line_and_leaves_nothing(cli, small_stitching, minis, checkpoints, tmp_path, case):
    (tmp_path / "one.txt").write_text(tiny.document(1))
    extra, message = BAD[case]
    places = {"minis": minis, "tmp": tmp_path, "gpt2": tiny_in_lower_case(checkpoints, tmp_path, case)}
    refused = cli("train.py", *small_stitching, *(word.format(**places) for word in extra))
    assert message in refused.error
    assert refused.stdout == ""
    assert not (tmp_path / "results").exists()


def tiny_in_lower_case(checkpoints, tmp_path, case):
    if case != "tokenizers that read another text":
        return None
    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "gpt2")
    whole = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps(whole | {"normalizer": {"type": "Lowercase"}}))
    return folder


def test_pairs_of_layers():
    assert pairs_of_layers("same", 3, 2) == [(0, 0), (1, 1)]
    assert pairs_of_layers("all", 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert pairs_of_layers([[1, 0]], 2, 2) == [(1, 0)]


@pytest.mark.slow
def test_two_processes_share_a_job_and_give_the_numbers_of_one(cli, small_stitching):
    placed = [*small_stitching, "model.device=cpu", "target.device=cpu"]
    placed.append("stitch.loss=cross_entropy")  # which has a floor
    alone = cli("train.py", *placed).result
    shared = cli.process("train.py", *placed, "trainer=ddp", "trainer.devices=2").result
    assert shared.folder != alone.folder
    tables = [result.tables["details"].select_dtypes(float) for result in (alone, shared)]
    apart = (tables[0] - tables[1]).abs().max()
    # the floor starts at its solution, where gradients are rounding errors
    near_zero = apart.index.str.startswith("floor")
    assert apart[~near_zero].max() < 1e-4
    assert apart[near_zero].max() < 1e-3
    weights = [load_file(result.folder / "stitch.safetensors") for result in (alone, shared)]
    for name, weight in weights[0].items():
        assert weight.abs().max() > 1e-3
        torch.testing.assert_close(weight, weights[1][name], atol=1e-4, rtol=0)  # steps of .01, over rounding errors


@pytest.mark.slow
def test_tensorboard_has_the_curves_of_a_training(cli, small_stitching):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = cli("train.py", *small_stitching, "layers=[[0,0]]", "logger=tensorboard").result
    there = EventAccumulator(str(result.folder / "curves")).Reload()
    assert {"loss", "loss/0-0"} <= set(there.Tags()["scalars"])
    assert there.Scalars("result/mean_penalty")[0].value == pytest.approx(result.scalars["mean_penalty"])


@pytest.mark.ci_slow
def test_a_scale_that_nobody_gave_is_said_with_its_reason(cli, minis, text_files):
    words = ["measure=loss", "model=local", f"model.path={minis}/a", "data=text", f"data.files=[{text_files}/*.txt]"]
    words += ["model.context=32", "data.evaluation_tokens=2048", "data.evaluation_share=0.4", "store=results"]
    assert cli("analyze.py", *words).stderr.count("scale=mini: these models are small; scale=paper takes") == 1
    assert "scale=" not in cli("analyze.py", *words, "scale=mini", "force=true").stderr


PAIR = ("gelu-3l-mini", "solu-3l-mini")


def models(*words):
    config = composed(*words)
    return config.model.name, config.target.name


@pytest.mark.parametrize(
    ("words", "both"),
    [
        ([], PAIR),
        (["seed=1", "model.device=cpu"], PAIR),
        (["model=solu-3l-mini"], ("solu-3l-mini", "solu-3l-mini")),
        (["model@target=gelu-4l-mini"], ("gelu-3l-mini", "gelu-4l-mini")),
        (["model.path=somewhere"], ("gelu-3l-mini", "gelu-3l-mini")),
        (["target.dtype=bfloat16"], ("gelu-3l-mini", "gelu-3l-mini")),
    ],
)
def test_a_named_model_is_its_own_target_and_else_there_are_two(words, both):
    assert models(*words) == both
    assert both != PAIR or key_settings(composed(*words)) == key_settings(composed(*words, "model@target=solu-3l-mini"))


def table(pairs=((0, 0), (1, 1), (2, 2)), target="b", **columns):
    count = len(pairs)
    rows = {"source": "a", "target": target}
    rows |= {
        "source_layer": [layer for layer, _ in pairs],
        "target_layer": [depth for _, depth in pairs],
        "penalty": [0.205, 0.235, 0.128][:count],
        "identity_penalty": [1.44, 1.6, 0.384][:count],
        "floor_penalty": [0.0003, 0.0028, 0.0012][:count],
    }
    given = pd.DataFrame({**rows, **columns}).drop(columns=[name for name, each in columns.items() if each is None])
    for baseline in ("identity", "token_mean"):
        if f"{baseline}_penalty" in given:
            given[f"improvement_over_{baseline}"] = given[f"{baseline}_penalty"] - given["penalty"]
            for end, width in {"low": -0.05, "high": 0.05}.items():
                name = f"improvement_over_{baseline}_{end}"
                given[name] = columns.get(name, given[f"improvement_over_{baseline}"] + width)
    for name in given.filter(like="penalty").filter(regex="^(?!floor).*penalty$"):
        for end, width in {"low": -0.05, "high": 0.05}.items():
            given[f"{name}_{end}"] = columns.get(f"{name}_{end}", given[name] + width)
    return given


SENTENCES = {  # parts of a sentence that depend on the table
    "three layers": (table(), ["Stitching layers 0 to 2 of a into b costs 0.13 to 0.23 nats per token, less than"]),
    "below both baselines": (
        table(token_mean_penalty=[0.8, 1.0, 1.57]),
        ["token, less than the token-mean baseline and the identity baseline."],
    ),
    "no more than the current token": (
        table([(0, 0)], token_mean_penalty=0.22, identity_penalty=0.1),
        [
            "not distinguishable from the token-mean baseline (0.22, a difference of 0.02 [-0.03, 0.07]), ",
            "more than the identity baseline (0.10, a difference of 0.10 [0.05, 0.15]).",
        ],
    ),
    "a baseline at some layers": (
        table(token_mean_penalty=[0.8, 0.25, 0.01], identity_penalty=None),
        ["less than the token-mean baseline at 0→0 and not distinguishable from it at 1→1 and more than it at 2→2."],
    ),
    "intervals that overlap, of penalties that differ alike in every document": (
        table(token_mean_penalty=0.28, penalty_high=0.6, improvement_over_token_mean_low=0.01, identity_penalty=None),
        ["token, less than the token-mean baseline."],
    ),
    "no intervals": (
        table(
            token_mean_penalty=1.0,
            improvement_over_token_mean_low=math.nan,
            improvement_over_token_mean_high=math.nan,
            identity_penalty=None,
        ),
        ["token, not distinguishable from the token-mean baseline."],
    ),
    "the identity as the map": (table(stitch="identity"), ["costs 0.13 to 0.23 nats per token."]),
    "one layer into another": (table([(0, 1)]), ["Stitching layer 0 of a into layer 1 of b costs 0.20 nats"]),
    "layers with a gap": (table([(0, 0), (2, 2)]), ["Stitching layers 0, 2 of a into b costs"]),
    "layers that no range of is made": (
        table([(0, 0), (10**15, 10**15)]),
        ["Stitching layers 0, 1000000000000000 of a into b costs"],
    ),
    "layers out of order": (table([(2, 2), (1, 1), (0, 0)]), ["Stitching layers 2, 1, 0 of a into b costs"]),
    "layers of unequal numbers": (
        table([(0, 0), (7, 4), (14, 8)]),
        ["Stitching layers 0, 7, 14 of a into layers 0, 4, 8 of b (3 pairs) costs"],
    ),
    "itself": (table(target="a", penalty=[-0.007, -0.006, -0.005]), ["into itself costs -0.007 to -0.005 nats"]),
    "what rounding makes of 0": (table(penalty=[-4e-10, 0.0, 2e-9]), ["into b costs 0.00 nats per token"]),
    "ends of as many decimals": (table(penalty=[0.474, 0.6, 1.046]), ["into b costs 0.47 to 1.05 nats per token,"]),
    "a reading": (
        table(equivalent_bits=[3.2, 3.5, 3.3]),
        ["less than the identity baseline, and as much as rounding the weights of b to 3.2 to 3.5 bits."],
    ),
    "a reading at the end of the scale": (
        table(equivalent_bits=[1.0, 3.5, 3.3]),
        ["rounding the weights of b to below 2 to 3.5"],
    ),
}


def test_the_floor_is_said_of_different_models_alone():
    floor = "The same recipe costs 0.0003 to 0.0028 nats per token for b into itself (the floor)."
    assert sentence_of_floor(table()) == floor
    assert sentence_of_floor(table(floor_penalty=None)) == ""
    assert sentence_of_floor(table(target="a")) == ""


def test_each_column_of_a_stitch_is_explained_below_its_table():
    note = meaning_of_columns(table(token_mean_penalty=1.0, equivalent_bits=3.2))
    assert "the identity baseline is the penalty without a map" in note
    assert "the token-mean baseline is that of a map that knows only the current token" in note
    assert "Bits by loss: the target with weights rounded to so many bits loses as much." in note
    bare = meaning_of_columns(table(identity_penalty=None))
    assert bare == "The penalty is the loss of the stitched model minus that of the target alone."


@pytest.mark.parametrize("what", SENTENCES)
def test_one_sentence_says_what_was_found(what):
    rows, parts = SENTENCES[what]
    assert all(part in sentence_of_direction(rows) for part in parts), sentence_of_direction(rows)


def test_a_stitchs_sentence_has_the_text_of_fitting_and_the_losses_of_both_models():
    losses = {"source_loss": 3.5, "target_loss": 3.25}
    stitch, facts = {"kind": "linear", "steps": 16, "tokens_per_step": 256}, {"fit_tokens": 1024}
    fitted = "fitted on 4,096 tokens, 1,024 of them different"
    said = text_and_losses(table(**losses), stitch, facts)
    assert said == f"{fitted}; loss of the source alone 3.50, of the target 3.25 nats per token"
    assert sentence_of_direction(table(**losses), said).endswith(f"; {said}.")
    bytes_ = {"source_bits_per_byte": 1.2, "target_bits_per_byte": 1.0, "penalty_bits_per_byte": 0.1}
    said = text_and_losses(table(**losses, **bytes_), stitch, facts)
    in_one_unit = "losses alone: source 3.90 (by bytes), target 3.25 nats per token"  # 3.25 nats are 1 bit per byte
    assert said == f"{fitted}; {in_one_unit}"
    assert text_and_losses(table(target="a", **losses), stitch, None) == "loss of the model alone 3.25 nats per token"


def test_penalties_of_controls_are_on_the_screen_in_the_unit_of_the_penalty():
    of_controls = {"shuffled_penalty": [2.0, 3.0, 2.5], "random_source_penalty": math.nan}
    penalties = "floor 0.0003 to 0.0028, shuffled tokens 2.00 to 3.00"
    assert sentence_of_controls(table(**of_controls)) == f"Penalties of controls: {penalties}."
    assert sentence_of_controls(table()) == ""


@pytest.mark.parametrize("has_losses", [True, False])
def test_the_asymmetry_of_two_tokenizers_is_in_the_unit_of_the_penalty(has_losses, capsys):
    asymmetry = {
        "asymmetry_bits_per_byte": 0.1,
        "asymmetry_bits_per_byte_low": 0.05,
        "asymmetry_bits_per_byte_high": 0.2,
    }
    losses = {"target_loss": 3.0, "target_bits_per_byte": 1.0, "penalty_bits_per_byte": 0.1} if has_losses else {}
    show_asymmetry(table(**asymmetry, **losses))
    said = " ".join(capsys.readouterr().out.split())
    wanted = (
        "0.300 [0.150, 0.600] nats per token of b more." if has_losses else "0.100 [0.050, 0.200] bits per byte more."
    )
    assert wanted in said


@pytest.mark.parametrize(
    ("stitch", "different", "said"),
    [
        ({"kind": "linear", "steps": 4, "tokens_per_step": 256}, 1024, "1,024 tokens"),
        ({"kind": "linear", "steps": 8, "tokens_per_step": 256}, 1024, "2,048 tokens, 1,024 of them different"),
        ({"kind": "least_squares", "steps": 64, "tokens_per_step": 4096}, 1024, "1,024 tokens"),
        ({"kind": "identity", "steps": 64, "tokens_per_step": 4096}, 1024, ""),
        ({"kind": "linear"}, 1024, ""),
        ({"kind": "linear", "steps": 4, "tokens_per_step": 256}, None, ""),
    ],
)
def test_how_much_text_a_map_was_fitted_on(stitch, different, said):
    assert tokens_of_fitting(stitch, {"fit_tokens": different}) == said


@pytest.mark.ci_slow
def test_a_job_prints_its_sentence_for_each_direction(cli, small_stitching):
    done = cli("train.py", "layers=[[0,0],[1,1]]", "stitch.both=true", *small_stitching)
    details = done.result.tables["details"]
    there, back = [rows for _, rows in details.groupby(["source", "target"], sort=False)]
    about_job = text_and_losses(there, done.result.config["stitch"], done.result.provenance["data"])
    ways = [sentence_of_direction(there, about_job), sentence_of_direction(back)]
    assert all(way in " ".join(done.stdout.split()) for way in ways)
