"""Everything that can go wrong at the hub is one clear line, soon; and what a little patience mends is mended."""

import dataclasses
import re
import shutil
import time

import pytest
import torch

import hub
import tiny
from hub import Fault
from thinkalike import hub as requests
from thinkalike.config import DataConfig, ModelConfig
from thinkalike.data.documents import documents
from thinkalike.data.sources import commit_of
from thinkalike.errors import DataError, ModelError
from thinkalike.hub import forget_commits
from thinkalike.models.load import load_model
from thinkalike.models.places import checkpoint_fingerprint

MODEL = ModelConfig(name="m", hub_id="someone/m")
WEIGHTS = "model.safetensors"


@pytest.fixture
def root(tmp_path, checkpoints):
    shutil.copytree(checkpoints["gpt2"], tmp_path / "hub" / "someone" / "m")
    folder = tmp_path / "hub" / "someone" / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    return tmp_path / "hub"


@pytest.fixture
def hurry(monkeypatch):
    """Take a tenth of the time for everything; returns the pauses between requests, which take none."""
    pauses = []
    for module, name, value in [
        (requests, "PATIENCE", 2.0), (requests, "SILENCE", 0.5), (requests, "ANSWER_SECONDS", 0.5),
    ]:  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.6)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.5)
    monkeypatch.setattr(requests, "sleep", pauses.append)
    return pauses


def line_of(call, kind=ModelError):
    """The one line that a refusal consists of, which comes soon."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < 12
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ------------------------------------------------------------------------------------------------------------ patience


@pytest.mark.parametrize("where", ["/api/models", WEIGHTS, "config.json"])
@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_hub_that_is_busy_for_a_while_is_asked_again(served, hurry, where, status):
    served({where: Fault(status=status, times=1)})
    assert load_model(MODEL).revision == hub.COMMIT
    assert hurry[:1] == [1.0]


def test_it_is_asked_again_when_it_says(served, hurry, monkeypatch):
    monkeypatch.setattr(requests, "PATIENCE", 20.0)
    served({
        "/api/models": Fault(status=429, headers={"Retry-After": "7"}, times=1),
        WEIGHTS: Fault(status=503, headers={"Retry-After": "9"}, times=1),
    })  # fmt: skip
    load_model(MODEL)
    assert hurry == [7.0, 9.0]


@pytest.mark.parametrize("where", ["/api/models", "/resolve/", WEIGHTS])
def test_a_hub_that_stays_busy_is_given_up(served, hurry, where):
    served({where: Fault(status=503)})
    line = line_of(lambda: load_model(MODEL))
    assert "the hub still answers 503 (Service Unavailable)" in line
    assert "try again later" in line


def test_what_the_cache_has_is_used_while_the_hub_is_down(served, hurry, caplog):
    served()
    first = load_model(MODEL)
    forget_commits()
    served({"": Fault(status=500, headers={"Retry-After": "900"})})
    again = load_model(MODEL)
    assert (again.revision, again.fingerprint()) == (first.revision, first.fingerprint())
    assert "using the cached files of someone/m: the hub still answers 500" in caplog.text


# -------------------------------------------------------------------------------------------------------------- causes

GATED = Fault(status=403, headers={"X-Error-Code": "GatedRepo"})
CAUSES = {
    "gated": (GATED, "someone/. is gated: accept its terms at .*HF_TOKEN"),
    "no token": (Fault(status=401), r"forbids to read someone/. \(401\).*HF_TOKEN"),
    "forbidden": (Fault(status=403), r"forbids to read someone/. \(403\).*HF_TOKEN"),
    "no repository": (Fault(status=404, headers={"X-Error-Code": "RepoNotFound"}), "there is no repository someone/"),
    "no revision": (Fault(status=404, headers={"X-Error-Code": "RevisionNotFound"}), "has no revision main"),
    "no hub": (Fault(status=404), "the hub answers 404 for someone/"),
    "silence": (Fault(silence=1.5), "does not answer in time"),
}


@pytest.mark.parametrize("where", ["/api/models", "/resolve/", WEIGHTS])
@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_told_apart(served, hurry, where, name):
    fault, words = CAUSES[name]
    served({where: fault})
    assert re.search(words.replace("someone/.", "someone/m"), line_of(lambda: load_model(MODEL)))


@pytest.mark.parametrize("body", ["<html>sign in</html>", "{}"])
def test_an_address_that_is_no_hub_is_named(served, body):
    served({"/api/models": Fault(status=200, body=body)})
    assert "does not answer as a hub does; check HF_ENDPOINT" in line_of(lambda: load_model(MODEL))


@pytest.mark.parametrize("name", CAUSES)
def test_each_cause_is_told_apart_for_data_sets(served, hurry, name):
    fault, words = CAUSES[name]
    served({"/api/datasets": fault})
    config = DataConfig(name="set", source="hub", hub_id="someone/set", field="text")
    for call in (lambda: commit_of("someone/set", None), lambda: list(documents(config))):
        line = line_of(call, DataError)
        assert re.search(words.replace("someone/.", "someone/set"), line)
        assert "use local files" in line


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (Fault(status=403), r"forbids to read someone/set \(403\)"),
        (Fault(status=503), r"the hub still answers 503 \(Service Unavailable\)"),
        (Fault(silence=3), "does not answer in time"),
    ],
)
def test_troubles_with_a_file_of_a_data_set(served, hurry, fault, words):
    config = DataConfig(name="set", source="hub", hub_id="someone/set", field="text")
    served({"train.jsonl": Fault(status=503, times=1)})
    assert list(documents(config)) == ["a", "b"]
    served({"train.jsonl": fault}, cache="other")
    assert re.search(words, line_of(lambda: list(documents(config)), DataError))


def test_a_file_that_is_not_there_is_named(served, root):
    (root / "someone" / "m" / WEIGHTS).unlink()
    served()
    assert WEIGHTS in line_of(lambda: load_model(MODEL))


def test_a_refused_connection(monkeypatch, tmp_path):
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path)
    assert "127.0.0.1 does not answer" in line_of(lambda: load_model(MODEL))


def test_offline_mode_is_named(monkeypatch, tmp_path):
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in line_of(lambda: load_model(MODEL))


# ------------------------------------------------------------------------------------------------------------- commits

MOVED = "f" * 40


def test_the_key_of_a_hub_model_is_its_commit_which_is_asked_for_once(served):
    asked = served()
    assert checkpoint_fingerprint(MODEL) == hub.COMMIT
    count = len(asked)
    assert checkpoint_fingerprint(MODEL) == hub.COMMIT
    assert len(asked) == count
    served(commit=MOVED)
    assert checkpoint_fingerprint(MODEL) == MOVED


def test_all_files_are_of_the_commit_of_the_key(served):
    asked = served()
    assert load_model(MODEL).revision == checkpoint_fingerprint(MODEL)
    of_main = [path for path in asked if "/resolve/main/" in path]
    assert set(of_main) == {"/someone/m/resolve/main/config.json"}  # tells the cache what main is


def test_a_pinned_commit_needs_no_hub(monkeypatch, tmp_path):
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path)
    assert checkpoint_fingerprint(ModelConfig(name="m", hub_id="someone/m", revision=MOVED)) == MOVED
    assert commit_of("someone/set", MOVED) == MOVED


def test_without_a_hub_the_commit_is_that_of_the_cache(served, monkeypatch, tmp_path):
    served()
    assert (checkpoint_fingerprint(MODEL), commit_of("someone/set", None)) == (hub.COMMIT, hub.COMMIT)
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path / "cache")
    assert (checkpoint_fingerprint(MODEL), commit_of("someone/set", None)) == (hub.COMMIT, hub.COMMIT)
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path / "empty")
    assert "cannot get someone/m" in line_of(lambda: checkpoint_fingerprint(MODEL))
    assert "cannot stream a data set (someone/set)" in line_of(lambda: commit_of("someone/set", None), DataError)


def test_a_legacy_model_is_patient_too(served, root, hurry):
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    tiny.write_legacy(root / "NeelNanda" / "old", "NeelNanda/tokenizer")
    served({"final.pth": Fault(status=503, times=1)})
    config = ModelConfig(name="old", hub_id="NeelNanda/old", family="legacy")
    assert load_model(config).revision == hub.COMMIT


def test_a_legacy_model_must_be_whole_and_its_tokenizer_must_be_there(served, root):
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    path = root / "NeelNanda" / "old"
    tiny.write_legacy(path, "NeelNanda/tokenizer")
    weights = torch.load(path / "tiny_final.pth", weights_only=True)
    config = ModelConfig(name="old", hub_id="NeelNanda/old", family="legacy")

    def load_with(changed, cache, **changes):
        torch.save(changed, path / "tiny_final.pth")
        served(cache=cache)
        return load_model(dataclasses.replace(config, **changes))

    for dtype in ("bfloat16", "float16"):
        assert load_with(weights, "whole", dtype=dtype).dtype == getattr(torch, dtype)
    holed = {name: weight for name, weight in weights.items() if "blocks.1." not in name}
    line = line_of(lambda: load_with(holed, "holed"))
    assert "Missing key(s) in state_dict" in line
    assert "NeelNanda/old" in line
    shutil.rmtree(root / "NeelNanda" / "tokenizer")
    assert "there is no repository NeelNanda/tokenizer" in line_of(lambda: load_with(weights, "without"))
