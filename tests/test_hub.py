"""The main job against a hub: what a user of the real models gets, and what the errors say."""

import json

import pandas as pd
import pytest
import torch

import hub
import tiny
from thinkalike.models import FrozenModel

SMALL = ("stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256", "data=text", "data.report_tokens=4096",
         "data.report_share=0.4", "model.context=32")  # fmt: skip
SOLU = "NeelNanda/SoLU_3L512W_C4_Code"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    tiny.write_legacy(root / SOLU, "NeelNanda/tokenizer", n_layers=3)
    return root


def stitch(run_door, text_files, endpoint, *words, model="solu-3l", **options):
    return run_door(
        "train.py", f"model={model}", *SMALL, f"data.files=[{text_files}/*.txt]", *words,
        env={"HF_ENDPOINT": endpoint, "HF_HUB_DOWNLOAD_TIMEOUT": "5"}, **options,
    )  # fmt: skip


def refused(process) -> str:
    """The one line of a job that was refused."""
    assert process.returncode == 1, process.stderr
    assert "Traceback" not in process.stderr
    assert process.stderr.count("error: ") == 1
    return process.stderr[process.stderr.index("error: ") :]


def test_main_job_downloads_loads_trains_and_writes(run_door, repositories, text_files, tmp_path):
    with hub.serve(repositories) as (endpoint, asked):
        done = stitch(run_door, text_files, endpoint, "stitch=linear")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / done.stdout.strip().splitlines()[-1].removeprefix("results: ")
    assert any(path.endswith("tiny_final.pth") for path in asked)
    assert list(pd.read_csv(folder / "table.csv")["source_layer"]) == [0, 1, 2]
    models = json.loads((folder / "result.json").read_text())["provenance"]["models"]
    assert models[0]["revision"] == hub.COMMIT
    # and from the cache, with no hub any more
    again = stitch(run_door, text_files, "http://127.0.0.1:9", "stitch=affine")
    assert again.returncode == 0, again.stderr
    assert "using the cached files" in again.stderr


def test_no_hub_and_no_cache(run_door, text_files, tmp_path):
    line = refused(stitch(run_door, text_files, "http://127.0.0.1:9", timeout=30))
    assert all(word in line for word in (SOLU, "127.0.0.1:9", "HF_HOME", "model.path=", "gelu-3l-mini"))
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize("fault", ["truncated", "half sent", "missing repository", "no weights", "not a transformer"])
def test_faults_of_a_repository(run_door, repositories, text_files, tmp_path, fault):
    root = tmp_path / "hub"
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    truncate = ()
    if fault != "missing repository":
        tiny.write_legacy(root / SOLU, "NeelNanda/tokenizer", n_layers=3)
    weights, config = root / SOLU / "tiny_final.pth", root / SOLU / "config.json"
    if fault == "truncated":
        weights.write_bytes(weights.read_bytes()[:3000])
    elif fault == "half sent":
        truncate = ("tiny_final.pth",)
    elif fault == "no weights":
        weights.unlink()
    elif fault == "not a transformer":
        config.write_text(json.dumps({**json.loads(config.read_text()), "n_layers": 2}))
    with hub.serve(root, truncate) as (endpoint, _):
        line = refused(stitch(run_door, text_files, endpoint, timeout=60))
    assert "solu-3l" in line
    assert not (tmp_path / "results").exists()


def test_legacy_weights_arrive_in_the_right_places(repositories, monkeypatch, tmp_path):
    """The same weights through the legacy layout and directly give the same logits."""
    from transformer_lens.model_bridge.sources import tl_legacy
    from transformers import AutoTokenizer

    from thinkalike.models.unhooked import without_hooks

    def local(repository, filename, **_):
        return str(repositories / repository / filename)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", local)
    monkeypatch.setattr("huggingface_hub.HfApi.list_repo_files", lambda *_, **__: ["tiny_final.pth"])
    tokenizer = AutoTokenizer.from_pretrained(repositories / "NeelNanda" / "tokenizer")
    bridge = tl_legacy.boot(SOLU, device="cpu", tokenizer=tokenizer)
    reference = tiny.frozen(n_layers=3)
    loaded = FrozenModel(without_hooks(bridge.original_model), reference.family, tiny.tokenizer(), name="l", context=64)
    tokens = torch.randint(300, (2, 20))
    torch.testing.assert_close(loaded.full(tokens), reference.full(tokens), atol=1e-5, rtol=1e-5)
    for layer in range(-1, 3):
        torch.testing.assert_close(
            loaded.tail(loaded.head(tokens, layer), layer), loaded.full(tokens), atol=1e-4, rtol=0
        )


def test_sets_of_the_hub_are_streamed(run_door, tmp_path):
    """One that has files of a loading format, and one that is read by file name."""
    texts = [tiny.document(seed) for seed in range(40)]
    for name in ("NeelNanda/pile-10k/data", "EleutherAI/pile_val_test"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "hub/NeelNanda/pile-10k/data/train-00000-of-00001.parquet")
    lines = "".join(json.dumps({"text": text, "meta": {"pile_set_name": "x"}}) + "\n" for text in texts)
    (tmp_path / "hub/EleutherAI/pile_val_test/val.jsonl").write_text(lines)
    tiny.write_mini(tmp_path / "mini")
    words = [f"model.path={tmp_path}/mini", "data.report_tokens=4096", "data.context=32", "data.report_share=0.4"]
    with hub.serve(tmp_path / "hub") as (endpoint, _):
        done = [
            run_door("analyze.py", *words, f"data={name}", env={"HF_ENDPOINT": endpoint})
            for name in ("pile-10k", "pile-val")
        ]
    assert [process.returncode for process in done] == [0, 0], done[0].stderr + done[1].stderr
    tables = [pd.read_csv(tmp_path / process.stdout.split("results: ")[1].strip() / "table.csv") for process in done]
    assert tables[0]["loss"][0] == tables[1]["loss"][0]  # the same documents, wherever they come from


def test_a_set_without_a_hub(run_door, tmp_path):
    tiny.write_mini(tmp_path / "mini")
    words = [f"model.path={tmp_path}/mini", "data=pile-10k"]
    line = refused(run_door("analyze.py", *words, env={"HF_ENDPOINT": "http://127.0.0.1:9"}, timeout=60))
    assert "cannot stream data=pile-10k" in line
    assert "data=stdlib" in line
