"""The main job against a hub: what a user of the real models gets, and what the errors say."""

import json

import pandas as pd
import pytest
import torch

import hub
import tiny
from thinkalike.models.frozen import FrozenModel

SMALL = ("stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256", "data=text", "data.report_tokens=4096",
         "data.report_share=0.4", "model.context=32")  # fmt: skip
SETS = ("NeelNanda/pile-10k", "pile-10k", "pile-val", "old/tales")
SOLU = "NeelNanda/SoLU_3L512W_C4_Code"


@pytest.fixture(scope="module")
def repositories(tmp_path_factory):
    root = tmp_path_factory.mktemp("hub")
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    tiny.write_legacy(root / SOLU, "NeelNanda/tokenizer", n_layers=3)
    return root


@pytest.fixture
def stitch(cli, text_files):
    """Run the main job against a hub."""

    def run(endpoint, *words):
        return cli("train.py", "model=solu-3l", *SMALL, f"data.files=[{text_files}/*.txt]", *words, endpoint=endpoint)

    return run


def test_main_job_downloads_loads_trains_and_writes(stitch, repositories):
    with hub.serve(repositories) as (endpoint, asked):
        result = stitch(endpoint, "stitch=linear").result
    assert any(path.endswith("tiny_final.pth") for path in asked)
    assert list(result.table["source_layer"]) == [0, 1, 2]
    assert result.provenance["models"][0]["revision"] == hub.COMMIT
    # and from the cache, with no hub any more
    again = stitch(hub.NOWHERE, "stitch=affine")
    assert again.result.folder != result.folder
    assert "using the cached files" in again.stderr


def test_no_hub_and_no_cache(stitch, tmp_path):
    line = stitch(hub.NOWHERE).error
    assert all(word in line for word in (SOLU, "127.0.0.1:9", "HF_HOME", "model.path=", "solu-3l-mini"))
    assert not (tmp_path / "results").exists()


def test_legacy_weights_arrive_in_the_right_places(repositories, monkeypatch, tmp_path):
    """The same weights through the legacy layout and directly give the same logits."""
    from transformer_lens.model_bridge.sources import tl_legacy
    from transformers import AutoTokenizer

    from thinkalike.models.survey import without_hooks

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
    for layer in ("embed", 0, 1, 2):
        torch.testing.assert_close(
            loaded.tail(loaded.head(tokens, layer), layer), loaded.full(tokens), atol=1e-4, rtol=0
        )


@pytest.mark.slow
@pytest.mark.ci_slow
def test_sets_of_the_hub_are_streamed(cli, tmp_path):
    """One that has files of a loading format, and one that is read by file name."""
    texts = [tiny.document(seed) for seed in range(40)]
    for name in ("NeelNanda/pile-10k/data", "EleutherAI/pile_val_test", "old/tales"):
        (tmp_path / "hub" / name).mkdir(parents=True)
    pd.DataFrame({"text": texts}).to_parquet(tmp_path / "hub/NeelNanda/pile-10k/data/train-00000-of-00001.parquet")
    lines = "".join(json.dumps({"text": text, "meta": {"pile_set_name": "x"}}) + "\n" for text in texts)
    for place in ("EleutherAI/pile_val_test/val.jsonl", "old/tales/train.jsonl"):
        (tmp_path / "hub" / place).write_text(lines)
    tiny.write_mini(tmp_path / "mini")
    words = [f"model.path={tmp_path}/mini", "data.report_tokens=4096", "data.context=32", "data.report_share=0.4"]
    lacking = {"field": "data.field=story", "subset": "data.subset=fr", "split": "data.split=test"}
    with hub.serve(tmp_path / "hub") as (endpoint, _):
        results = [cli.process("analyze.py", *words, f"data={name}", endpoint=endpoint).result for name in SETS]
        wrong = {key: cli.process("analyze.py", *words, f"data={SETS[0]}", word, endpoint=endpoint).error
                 for key, word in lacking.items()}  # fmt: skip
    losses = [result.table["loss"][0] for result in results]
    assert len(set(losses)) == 1  # the same documents, wherever they come from
    assert "has no text in field story; there is: text" in wrong["field"]
    assert "BuilderConfig 'fr' not found. Available: ['default']" in wrong["subset"]
    assert "Bad split: test. Available splits: ['train']" in wrong["split"]
