"""The doors: what a user sees, what is left in the store, and what bad input says."""

import json
import sys
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import tiny
from conftest import ROOT, kill_and_resume
from thinkalike.errors import ConfigError
from thinkalike.jobs.stitching import layer_pairs
from thinkalike.jobs.table import byte_count, warn_of_far_states


@pytest.fixture
def words(minis, text_files, tmp_path):
    """The command line of a small stitching job."""
    small = ["stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256", "model.context=32"]
    data = ["data=text", f"data.files=[{text_files}/*.txt]", "data.report_tokens=4096", "data.report_share=0.4"]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]
    return [f"model.path={minis}/a", f"target.path={minis}/b", "target.context=32", *small, *data, *store]


def test_a_job_prints_its_table_and_leaves_a_whole_result(call, words, tmp_path):
    status, out, err = call("train.py", *words)
    assert status == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("results: "))
    assert folder.parent == tmp_path / "results" / "stitching"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]  # no .partial
    expected = {"config.yaml", "result.json", "table.csv", "arrays.npz", "stitch.safetensors", "figures", "curves"}
    assert {path.name for path in folder.iterdir()} == expected
    assert {path.name for path in (folder / "figures").iterdir()} == {"penalty.png", "penalty.svg"}
    table = pd.read_csv(folder / "table.csv")
    assert (table["penalty"] - (table["stitching_loss"] - table["target_loss"])).abs().max() < 1e-9
    assert ((table["penalty_low"] <= table["penalty"]) & (table["penalty"] <= table["penalty_high"])).all()
    assert all(word in out for word in ("stitching loss", "identity penalty", "0→0", "3→3"))
    record = json.loads((folder / "result.json").read_text())
    assert record["provenance"]["data"]["report_documents"] >= 2
    assert len(record["provenance"]["models"]) == 2

    status, out, err = call("train.py", *words)
    assert (status, out) == (0, f"results: {folder}\n")
    assert "already done" in err
    stamp = (folder / "result.json").stat().st_mtime_ns
    assert call("train.py", *words, "force=true")[0] == 0
    assert (folder / "result.json").stat().st_mtime_ns > stamp
    assert table.equals(pd.read_csv(folder / "table.csv"))  # the same numbers, to the bit


def test_identity_and_other_layers(call, words):
    status, out, err = call(
        "train.py", *words, "stitch=identity", "stitch.tokens_per_step=16384", "layers=[[0,1],[2,2]]"
    )
    assert status == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("results: "))
    table = pd.read_csv(folder / "table.csv")
    assert list(zip(table["source_layer"], table["target_layer"], strict=True)) == [(0, 1), (2, 2)]
    assert table["penalty"].equals(table["identity_penalty"])
    assert not (folder / "stitch.safetensors").exists()


@pytest.mark.parametrize("kind", ["least_squares", "procrustes", "reduced_rank", "bias", "orthogonal", "low_rank"])
def test_every_kind_of_stitch_is_reported_beside_its_controls(call, words, kind):
    more = ["stitch.controls=true", "stitch.rank=4"]
    status, out, err = call("train.py", *words, f"stitch={kind}", *more)
    assert status == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("results: "))
    table = pd.read_csv(folder / "table.csv")
    for control in ("identity", "least_squares", "procrustes", "bias", "shuffled", "random_source"):
        assert table[f"{control}_penalty"].notna().all()
        assert (table[f"{control}_penalty_low"] <= table[f"{control}_penalty"]).all()
    if kind in ("least_squares", "procrustes", "bias"):
        assert (table["penalty"] - table[f"{kind}_penalty"]).abs().max() < 1e-6
    assert (table["shuffled_penalty"] != table["penalty"]).all()
    assert table["top1_agreement"].between(0, 1).all()
    assert "penalties of the controls" in out
    bits = table["stitching_loss"] * table["bits_per_byte"].iloc[0] / table["stitching_loss"].iloc[0]
    assert (bits - table["bits_per_byte"]).abs().max() < 1e-9
    assert (folder / "stitch.safetensors").exists()


def test_a_start_from_a_closed_form_is_where_training_begins(call, words):
    still = ["stitch.lr=1e-12", "stitch.weight_decay=0"]
    tables = []
    for more in (["stitch=affine", "stitch.init=least_squares", *still], ["stitch=least_squares"]):
        status, out, err = call("train.py", *words, *more)
        assert status == 0, err
        tables.append(pd.read_csv(Path(out.strip().splitlines()[-1].removeprefix("results: ")) / "table.csv"))
    assert (tables[0]["penalty"] - tables[1]["penalty"]).abs().max() < 1e-4


def test_far_states_at_a_low_penalty_are_warned_of(caplog):
    columns = {"source_layer": [0, 1, 2], "target_layer": [0, 1, 2]}
    table = pd.DataFrame({**columns, "penalty": [0.01, 0.01, 0.9], "distance": [2.0, 0.2, 2.0]})
    with caplog.at_level("WARNING", logger="thinkalike"):
        warn_of_far_states(table)
    assert [record.message for record in caplog.records] == [
        "warning: 0→0 costs only 0.010 nats, but its states lie 2.0 norms from the target's own"
    ]


def test_bytes_are_those_of_the_text():
    text = "abc dé " * 30
    rows = torch.tensor([[0, *tiny.tokenizer().encode(text)]])
    assert byte_count(tiny.tokenizer(), rows) == len(text.encode())


def test_a_killed_run_goes_on_to_the_same_table(words, tmp_path):
    def command(store):
        long = ["stitch.steps=60", "trainer.checkpoint_every=5", "trainer.threads=1", f"store={tmp_path}/{store}"]
        return [sys.executable, str(ROOT / "train.py"), *words[:-2], words[-1], *long]

    killed, whole = kill_and_resume(command, tmp_path, "stitching", "last.ckpt")
    for name in ("table.csv", "stitch.safetensors"):
        assert (killed / name).read_bytes() == (whole / name).read_bytes()


BAD = {
    "unknown model": (["model=gelu-3l-mimi"], r"model=gelu-3l-mimi is not known; did you mean 'gelu-3l-mini'"),
    "layer out of range": (["layers=[[0,0],[4,1]]"], "[4,1] is out of range; the source has layers 0 to 3"),
    "layers that are none": (["layers=[0,1]"], "give same, all, or a list of pairs"),
    "tokenizers that differ": (["model.path={gpt2}", "model.mini=false", "model.family=auto"], "different tokenizers"),
    "widths and identity": (["target.path={minis}/wide", "stitch=identity"], "stitch=identity needs equal widths"),
    "no steps": (["stitch.steps=0"], "stitch.steps=0 must be positive"),
    "empty data": (["data.files=[{tmp}/empty.txt]"], "holds no text"),
    "no such data": (["data.files=[{tmp}/nothing*.txt]"], "nothing matches"),
    "one document": (["data.files=[{tmp}/one.txt]"], "has too little text"),
    "divergence": (["stitch.lr=1e38", "stitch.clip=0", "stitch.weight_decay=0"], "at step"),
    "unwritable store": (["store={tmp}/one.txt/results"], "cannot be written"),
    "procrustes into less": (
        ["model.path={minis}/wide", "stitch=procrustes"],
        "cannot go to a smaller width: gelu-3l-mini has 48",
    ),
    "too high a rank": (["stitch=low_rank", "stitch.rank=33"], "stitch.rank=33 is more than the smaller width"),
    "rank of nought": (["stitch=low_rank", "stitch.rank=0"], "stitch.rank=0 must be positive"),
    "start and norm": (["stitch.init=procrustes", "stitch.norm=pre"], "does not go with stitch.norm=pre"),
    "processes of one": (["trainer.devices=2"], "trainer.devices and trainer.num_nodes are for several processes"),
    "unknown precision": (["trainer.precision=bf16"], "there is: 32-true, bf16-mixed"),
    "unknown strategy": (["trainer.strategy=dpp"], "did you mean 'ddp'"),
    "unknown recipe": (["recipe=papre"], "recipe=papre is not known; did you mean 'paper'"),
    "misspelt setting": (["stitch.stepz=3"], "did you mean 'stitch.steps'"),
    "value of another type": (["stitch.steps=many"], "could not be converted to Integer"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line_and_leaves_nothing(call, words, minis, checkpoints, tmp_path, case):
    (tmp_path / "empty.txt").write_text(" ")
    (tmp_path / "one.txt").write_text(tiny.document(1))
    extra, message = BAD[case]
    places = {"minis": minis, "tmp": tmp_path, "gpt2": tiny_with_other_words(checkpoints, tmp_path, case)}
    status, out, err = call("train.py", *words, *(word.format(**places) for word in extra))
    assert status == 1
    assert out == ""
    assert message in err
    assert err.count("error: ") == 1
    assert "Traceback" not in err
    assert not (tmp_path / "results").exists()


def tiny_with_other_words(checkpoints, tmp_path, case):
    if case != "tokenizers that differ":
        return None
    import shutil

    folder = shutil.copytree(checkpoints["gpt2"], tmp_path / "gpt2")
    tiny.tokenizer(290).save_pretrained(folder)
    return folder


def test_a_damaged_cache_is_named(call, words, tmp_path):
    assert call("train.py", *words)[0] == 0
    for path in (tmp_path / "cache" / "tokens").iterdir():
        path.write_bytes(path.read_bytes()[:100])
    status, _, err = call("train.py", *words, "force=true")
    assert status == 1
    assert "is damaged" in err
    assert "deleting it is safe" in err


def test_layer_pairs():
    assert layer_pairs("same", 3, 2) == [(0, 0), (1, 1)]
    assert layer_pairs("all", 2, 2) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert layer_pairs([[1, 0]], 2, 2) == [(1, 0)]
    for wrong in ([], [[0]], [[0, -1]], [["0", 1]], 3, "none"):
        with pytest.raises(ConfigError):
            layer_pairs(wrong, 2, 2)


def test_pretraining_makes_a_mini_that_loads(call, text_files, tmp_path):
    shape = [
        f"model.architecture.{key}={value}"
        for key, value in {"d_model": 16, "n_heads": 2, "d_head": 8, "d_mlp": 32}.items()
    ]
    small = ["pretrain.tokens=4096", "pretrain.tokens_per_step=512", "pretrain.vocabulary=280", "pretrain.warmup=2"]
    data = [
        "data=text",
        f"data.files=[{text_files}/*.txt]",
        "data.report_tokens=2048",
        "data.context=64",
        "data.report_share=0.3",
    ]
    store = [f"store={tmp_path}/results", f"data.cache={tmp_path}/cache"]
    status, out, err = call("train.py", "task=pretrain", *shape, *small, *data, *store)
    assert status == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("results: ")) / "gelu-3l-mini"
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "README.md",
    }
    card = json.loads((folder / "config.json").read_text())
    assert f"{card['heldout']['loss']:.4f}" in (folder / "README.md").read_text()
    status, out, err = call("analyze.py", "measure=loss", f"model.path={folder}", *data, *store)
    assert status == 0, err
    assert f"{card['heldout']['loss']:.4f} nats" in out
    status, _, err = call("train.py", "task=pretrain", "model=gpt2", *data, *store)
    assert status == 1
    assert "has no architecture to train" in err


@pytest.mark.parametrize("script", ["train.py", "analyze.py"])
def test_doors_work_from_another_folder(run_door, script):
    shown = run_door(script, "--help")
    assert shown.returncode == 0
    assert "model=NAME" in shown.stdout
    composed = run_door(script, "--cfg", "job", "--resolve")
    assert composed.returncode == 0
    assert "name: gelu-3l-mini" in composed.stdout


def test_two_processes_share_a_job_and_give_the_numbers_of_one(run_door, words):
    tables, weights = [], []
    for more in ([], ["trainer=ddp", "trainer.devices=2"]):
        done = run_door("train.py", *words, *more, "model.device=cpu", "target.device=cpu")
        assert done.returncode == 0, done.stderr
        assert done.stdout.count("results: ") == 1
        folder = Path(done.stdout.strip().splitlines()[-1].removeprefix("results: "))
        tables.append(pd.read_csv(folder / "table.csv").drop(columns=["source", "target", "stitch"]))
        weights.append(load_file(folder / "stitch.safetensors"))
    assert (tables[0] - tables[1]).abs().max(axis=None) < 1e-4
    for name, weight in weights[0].items():
        assert weight.abs().max() > 1e-3
        torch.testing.assert_close(weight, weights[1][name], atol=1e-6, rtol=0)


def test_all_pairs_are_drawn_as_a_map(call, words):
    status, out, err = call("train.py", *words, "layers=all", "data.report_tokens=2048")
    assert status == 0, err
    folder = Path(out.strip().splitlines()[-1].removeprefix("results: "))
    picture = (folder / "figures" / "penalty.svg").read_text()
    assert "layer of the source" in picture
    table = pd.read_csv(folder / "table.csv")
    assert len(table) == 16
    assert all(f">{value:.2f}<" in picture for value in table["penalty"])


def test_asymmetry_is_the_difference_of_both_directions(call, words, minis):
    there = call("train.py", *words, "model.name=x", "target.name=y")
    asked = ["measure=asymmetry", *(word for word in words if word.startswith("store")), "model.name=x"]
    status, _, err = call("analyze.py", *asked, "target.name=y")
    assert status == 1
    assert "no stitches of x into y and back with one recipe; make them: python train.py -m model=x,y" in err
    turned = [f"model.path={minis}/b", f"target.path={minis}/a", "model.name=y", "target.name=x"]
    back = call("train.py", *words, *turned)
    folders = [Path(out.split("results: ")[1].strip()) for _, out, _ in (there, back)]
    penalties = [pd.read_csv(folder / "table.csv")["penalty"] for folder in folders]
    status, out, err = call("analyze.py", *asked, "target.name=y")
    assert status == 0, err
    folder = Path(out.split("results: ")[1].strip())
    table = pd.read_csv(folder / "table.csv")
    assert (table["asymmetry"] - (penalties[0] - penalties[1])).abs().max() < 1e-9
    assert ((table["low"] <= table["asymmetry"]) & (table["asymmetry"] <= table["high"])).all()
    assert (folder / "figures" / "asymmetry.png").exists()
    assert "already done" in call("analyze.py", *asked, "target.name=y")[2]


def read_back(run: Path):
    """All records of an offline W&B run: a LevelDB log of 32 KiB blocks, each part with checksum, length and type."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, place, parts, found = run.read_bytes(), 7, b"", []
    while place + 7 <= len(data):
        if (left := 32768 - place % 32768) < 7:
            place += left
            continue
        length, kind = int.from_bytes(data[place + 4 : place + 6], "little"), data[place + 6]
        parts = (b"" if kind in (1, 2) else parts) + data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            found.append(Record.FromString(parts))
    return found


def test_wandb_without_a_key_keeps_everything_offline(run_door, words, tmp_path):
    env = {"WANDB_API_KEY": "", "HOME": str(tmp_path), "NETRC": str(tmp_path / "none")}
    done = run_door("train.py", *words, "logger=wandb", env=env)
    assert done.returncode == 0, done.stderr
    assert "stays offline" in done.stderr
    folder = Path(done.stdout.strip().splitlines()[-1].removeprefix("results: "))
    (log,) = tmp_path.glob("results/wandb/offline-run-*/run-*.wandb")
    records = read_back(log)
    names = ("run", "history", "artifact", "exit")
    kinds = {name: [getattr(record, name) for record in records if record.HasField(name)] for name in names}
    curves = {item.key or "/".join(item.nested_key) for history in kinds["history"] for item in history.item}
    for name in ("loss", "loss/0-0", "loss/3-3", "table", "figures/penalty"):
        assert any(key == name or key.startswith(f"{name}/") for key in curves)
    assert {"stitch", "model", "target", "data"} <= {item.key for item in kinds["run"][0].config.update}
    assert "stitch" in {artifact.type for artifact in kinds["artifact"]}
    assert [end.exit_code for end in kinds["exit"]] == [0]  # finished
    (kept,) = log.parent.glob("files/media/table/*.table.json")
    table = json.loads(kept.read_text())
    assert table["columns"] == list(pd.read_csv(folder / "table.csv").columns)
    assert len(table["data"]) == 4
    assert list(log.parent.glob("files/media/images/**/penalty*.png"))
