"""A hub: what a user of the real models gets from it, and one clear line, soon, for all that can go wrong there."""

import dataclasses
import gzip
import json
import re
import shutil
import time
import warnings
import zlib
from types import SimpleNamespace

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import hub
import tiny
from conftest import with_slow
from hub import Fault
from thinkalike import hub as requests
from thinkalike.config import DataConfig, ModelConfig
from thinkalike.data.documents import documents_of
from thinkalike.data.sources import commit_of
from thinkalike.errors import ConfigError, DataError, ModelError
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.load import load_model

SMALL = ("stitch.steps=4", "stitch.warmup=1", "stitch.tokens_per_step=256", "data=text", "data.evaluation_tokens=4096",
         "data.evaluation_share=0.4", "model.context=32", "ruler=null")  # fmt: skip
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
    assert list(result.details["source_layer"]) == [0, 1, 2]
    assert result.provenance["models"][0]["revision"] == hub.COMMIT
    # and from the cache, with no hub any more
    again = stitch(hub.NOWHERE, "stitch=affine")
    assert again.result.folder != result.folder
    assert "using the cached files" in again.stderr


@pytest.mark.ci_slow
def test_no_hub_and_no_cache(stitch, tmp_path):
    line = stitch(hub.NOWHERE).error
    assert all(word in line for word in (SOLU, "127.0.0.1:9", "HF_HOME", "model=DIR", "a mini"))
    assert not (tmp_path / "results").exists()


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
    words = [
        f"model.path={tmp_path}/mini",
        "data.evaluation_tokens=4096",
        "data.context=32",
        "data.evaluation_share=0.4",
    ]
    lacking = {"field": "data.field=story", "subset": "data.subset=fr", "split": "data.split=test"}
    with hub.serve(tmp_path / "hub") as (endpoint, _):
        results = [cli("analyze.py", *words, f"data={name}", endpoint=endpoint).result for name in SETS]
        wrong = {key: cli("analyze.py", *words, f"data={SETS[0]}", word, endpoint=endpoint).error
                 for key, word in lacking.items()}  # fmt: skip
    losses = [result.details["loss"][0] for result in results]
    assert len(set(losses)) == 1  # the same documents, wherever they come from
    assert "has no text in field story; there is: text" in wrong["field"]
    assert "BuilderConfig 'fr' not found. Available: ['default']" in wrong["subset"]
    assert "Bad split: test. Available splits: ['train']" in wrong["split"]


MODEL = ModelConfig(name="m", hub_id="someone/m")
WEIGHTS = "model.safetensors"


@pytest.fixture
def root(tmp_path, checkpoints, pauses):
    shutil.copytree(checkpoints["gpt2"], tmp_path / "hub" / "someone" / "m")
    folder = tmp_path / "hub" / "someone" / "set"
    folder.mkdir()
    (folder / "train.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    return tmp_path / "hub"


@pytest.fixture
def pauses(monkeypatch):
    """Wait half a second for an answer, and not at all between two questions; returns the pauses."""
    pauses = []
    monkeypatch.setattr(requests, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(requests, "sleep", pauses.append)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 0.2)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_ETAG_TIMEOUT", 0.2)
    monkeypatch.setattr("huggingface_hub.utils._http.time", SimpleNamespace(sleep=pauses.append, time=time.time))
    return pauses


def line_of(call, kind=ModelError):
    """The one line of a refusal, which comes soon."""
    began = time.monotonic()
    with pytest.raises(kind) as caught:
        call()
    assert time.monotonic() - began < 12
    return str(caught.value)


@pytest.mark.parametrize(("where", "status"), [("/api/models", 429), (WEIGHTS, 503), ("config.json", 503)])
def test_a_hub_that_is_busy_for_a_while_is_asked_again(served, where, status):
    served({where: Fault(status=status, times=1)})
    assert load_model(MODEL).revision == hub.COMMIT


@pytest.mark.parametrize("where", ["/api/models", WEIGHTS])
def test_a_hub_that_stays_busy_is_given_up(served, pauses, where):
    served({where: Fault(status=503)})
    line = line_of(lambda: load_model(MODEL))
    assert "the hub answers 503 (Service Unavailable) for someone/m" in line
    assert len(pauses) >= 3


def test_what_the_cache_has_is_used_while_the_hub_is_down(served, caplog):
    served()
    first = load_model(MODEL)
    served({"": Fault(status=500)})
    again = load_model(MODEL)
    assert (again.revision, again.fingerprint()) == (first.revision, first.fingerprint())
    assert "using the cached files of someone/m: the hub answers 500" in caplog.text


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer.json"])
def test_a_file_that_is_not_what_the_hub_states_is_refused(served, name):
    served({f"main/{name}": Fault(altered=True), f"{hub.COMMIT}/{name}": Fault(altered=True)})
    assert f"{name} of someone/m does not have the SHA-256" in line_of(lambda: load_model(MODEL))
    served(cache="another")
    assert load_model(MODEL).revision == hub.COMMIT, "control"


@pytest.mark.parametrize("name", with_slow(["config.json", WEIGHTS], "config.json"))
def test_a_download_without_end_is_ended(served, monkeypatch, name):
    """Each byte comes in time, and all of them would take minutes."""
    monkeypatch.setattr(requests, "PATIENCE", 1.0)
    served({name: Fault(pause=0.05)})
    assert "bytes in 1 s" in line_of(lambda: load_model(MODEL))


def zipped(content):
    return gzip.compress(content), {"Content-Encoding": "gzip"}


def deflated(content):
    return zlib.compress(content), {"Content-Encoding": "deflate"}


@pytest.mark.parametrize("answer", [zipped, deflated, lambda content: (content, {})], ids=["gzip", "deflate", "plain"])
@pytest.mark.parametrize("where", ["/api/models", "config.json"])
def test_no_answer_that_is_read_whole_expands_without_bound(where, answer, served, monkeypatch):
    """A few kilobytes of gzip stand for gigabytes, which would be parsed."""
    monkeypatch.setattr(requests, "LARGEST_ANSWER", 2**20)
    monkeypatch.setattr(requests, "LARGEST_READ_WHOLE", 2**20)
    content, headers = answer(b" " * 2**21)
    headers |= {"ETag": '"a"', "X-Repo-Commit": hub.COMMIT}
    served({where: Fault(answer=(content, headers))})
    assert "read as a whole" in line_of(lambda: load_model(MODEL))


def test_compressed_answers_are_read(served, root):
    files = [{"rfilename": path.name} for path in (root / "someone" / "m").iterdir()]
    facts = {"id": "someone/m", "sha": hub.COMMIT, "siblings": files, "tags": [], "private": False}
    served({"/api/models": Fault(answer=zipped(json.dumps(facts).encode()), times=1)})
    assert load_model(MODEL).revision == hub.COMMIT


@pytest.mark.parametrize(
    ("states", "words"),
    [
        (
            {"X-Linked-Size": "5"},
            r"model.safetensors of someone/m came with \d+ bytes, and the hub states 5: .*load it",
        ),
        ({"X-Linked-Size": str(10**15)}, "the hub states a file of .* MB in someone/m, and .* free space; .*HF_HOME"),
    ],
)
def test_a_file_of_another_size_than_stated_is_told_with_a_remedy_of_this_program(states, words, served):
    served({WEIGHTS: Fault(states=states)})
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        line = line_of(lambda: load_model(MODEL))
    assert re.search(words, line)
    assert "force_download" not in line
    assert "\n" not in line
    assert not [warning for warning in warned if "disk" in str(warning.message)]


def test_a_file_beyond_what_plain_downloads_bring_names_xet(served, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 10)
    served()
    assert "unset HF_HUB_DISABLE_XET" in line_of(lambda: load_model(MODEL))


@pytest.mark.ci_slow
@pytest.mark.parametrize("name", ["config.json", WEIGHTS])
def test_a_hub_that_ends_in_the_middle_of_a_file_is_given_up(name, served, monkeypatch):
    """The library would resume five times, and without end where old bytes come again."""
    monkeypatch.setattr(requests, "LONGEST_STANDSTILL", 1.5)
    asked = served({name: Fault(states={"Content-Length": str(10**6)})})
    line = line_of(lambda: load_model(MODEL))
    assert re.search(f"{name} of .* was interrupted after [\\d,]+ bytes, again and again for [23] s", line)
    assert len([path for path in asked if path.endswith(name)]) <= 6


def files_outside(tmp_path):
    """The files that a test left beside the hub and the cache of its own."""
    return {path.name for path in tmp_path.iterdir()} - {"hub", "cache"}


OUTSIDE = ["../../../../x", "/x", "..", "a/b", "a\\b", ""]
COMMITS = [*OUTSIDE, "abc", hub.COMMIT.upper(), hub.COMMIT + "0"]
LIES = [
    *(("/api/models", "sha", value) for value in [*COMMITS, None, 5, ["a"]]),
    *(("/api/models", "id", value) for value in ["../../x", "/etc", "a/b/c"]),
    *((file, "ETag", f'"{value}"') for file in ("config.json", WEIGHTS) for value in OUTSIDE),
    *((WEIGHTS, "X-Linked-Etag", value) for value in OUTSIDE),
    *((file, "X-Repo-Commit", value) for file in ("config.json", WEIGHTS) for value in COMMITS),
    *((file, "X-Repo-Commit", "f" * 40) for file in ("tokenizer.json", WEIGHTS)),
    *((file, "X-Linked-Size", str(2**40)) for file in ("config.json", "tokenizer.json")),
]


@pytest.mark.parametrize(("where", "name", "value"), LIES)
def test_what_a_hub_states_makes_no_path_and_is_of_one_commit(where, name, value, served, tmp_path):
    served({where: Fault(states={name: value})})
    line = line_of(lambda: load_model(MODEL))
    assert "the hub states" in line or hub.COMMIT in line or "HF_ENDPOINT" in line or "read as a whole" in line
    assert files_outside(tmp_path) == set()


REVISIONS = [
    *("../../x", "/x", "a/../b", "a//b", "a b", "a\0", "a\n", "a:b"),
    *("@", "a@{1}", ".a", "a/.b", "a.lock", "a/", "a."),
]


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_revision_has_the_form_of_a_branch_a_tag_or_a_commit(revision, served, tmp_path):
    asked = served(revisions=REVISIONS)
    with pytest.raises(ConfigError, match=r"revision=.* of someone/m can be no branch, tag or commit"):
        load_model(dataclasses.replace(MODEL, revision=revision))
    assert asked == []
    assert files_outside(tmp_path) == set()


def test_revisions_of_every_form_are_asked_for(served):
    for revision in ("main", "v1.0", "refs/pr/1", "step-1000_a", "a@b", "5"):
        requests.check_revision(revision, "someone/m")
    served(revisions=("v1.0",))
    assert load_model(dataclasses.replace(MODEL, revision="v1.0")).revision == hub.COMMIT


CAUSES = {
    "gated": (Fault(status=403, code="GatedRepo"), "someone/. is gated: .*HF_TOKEN"),
    "no token": (Fault(status=401), r"reading (\S+ of )?someone/. \(401\).*HF_TOKEN"),
    "no repository": (Fault(status=404, code="RepoNotFound"), "no repository someone/"),
    "no revision": (Fault(status=404, code="RevisionNotFound"), "has no revision main"),
    "no hub": (Fault(status=404), "answers 404 .* for someone/"),
    "silence": (Fault(silence=0.8), "does not answer in time"),
}


@pytest.mark.parametrize(
    ("where", "name"), [*(("/api/models", name) for name in CAUSES), (WEIGHTS, "gated"), (WEIGHTS, "no token")]
)
def test_each_cause_is_told_apart(served, where, name):
    fault, words = CAUSES[name]
    served({where: fault})
    assert re.search(words.replace("someone/.", "someone/m"), line_of(lambda: load_model(MODEL)))


@pytest.mark.parametrize("status", [401, 403, 404, 410])
@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer_config.json", "tokenizer.json"])
def test_a_file_that_the_hub_lists_and_does_not_give_is_not_replaced_by_another(name, status, served, root):
    """transformers reads older weights, or a tokenizer without its settings, in the place of such a file."""
    folder = root / "someone" / "m"
    weights = load_file(folder / WEIGHTS)
    torch.save({key: 1.3 * weight for key, weight in weights.items()}, folder / "pytorch_model.bin")
    served({name: Fault(status=status)})
    assert re.search(rf"{name} of someone/m|{name} at revision", line_of(lambda: load_model(MODEL)))


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("name", ["tokenizer_config.json", WEIGHTS])
def test_a_file_that_a_busy_hub_does_not_give_is_not_missing(name, status, served, root):
    folder = root / "someone" / "m"
    weights = load_file(folder / WEIGHTS)
    torch.save({key: 1.3 * weight for key, weight in weights.items()}, folder / "pytorch_model.bin")
    served({name: Fault(status=status)})
    assert "someone/m" in line_of(lambda: load_model(MODEL))


@pytest.fixture
def clock(pauses, monkeypatch):
    """Let the pauses, which nobody waits for, count as time."""
    monkeypatch.setattr(requests, "monotonic", lambda: time.monotonic() + sum(pauses))


@pytest.mark.parametrize(
    ("name", "status"),
    [(WEIGHTS, 500), ("config.json", 503), ("tokenizer_config.json", 429), ("tokenizer", 503), ("resolve", 500)],
)
def test_a_file_of_a_busy_hub_is_waited_for_half_a_minute_at_most(name, status, served, pauses, clock):
    served({name: Fault(status=status)})
    line = line_of(lambda: load_model(MODEL))
    assert re.search(rf"the hub answers {status} \(.*\) for \S+ of someone/m; try again later", line)
    assert "no tokenizer" not in line
    assert sum(pauses) <= 30


@pytest.mark.parametrize("name", [WEIGHTS, "tokenizer_config.json"])
def test_a_hub_that_is_busy_for_some_seconds_is_not_given_up(name, served, pauses, clock):
    served({name: Fault(status=503, times=4)})
    assert load_model(MODEL).revision == hub.COMMIT
    assert sum(pauses) > 5, "control"


@pytest.mark.parametrize("headers", [{"Retry-After": "300"}, {"ratelimit": '"api";r=0;t=300'}], ids=str)
def test_a_hub_that_asks_to_wait_for_minutes_is_not_waited_for(headers, served, pauses, clock):
    served({WEIGHTS: Fault(status=429, states=headers)})
    assert "the hub answers 429 (Too Many Requests) for model.safetensors" in line_of(lambda: load_model(MODEL))
    assert sum(pauses) == 0


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ({"states": {"Content-Length": str(10**6)}}, r"train.jsonl of \S+ was interrupted after \d+ bytes"),
        ({"status": 503}, r"the hub answers 503 .* for train.jsonl of someone/set"),
    ],
)
def test_a_data_set_that_does_not_come_further_is_given_up(fault, words, served, pauses, clock, monkeypatch):
    monkeypatch.setattr("datasets.utils.file_utils.time", SimpleNamespace(sleep=pauses.append, time=time.time))
    served({"train.jsonl": Fault(**fault)})
    config = DataConfig(name="set", source="hub", hub_id="someone/set", hub_files=["train.jsonl"], field="text")
    line = line_of(lambda: list(documents_of(config)), DataError)
    assert re.search(words, line)
    assert sum(pauses) <= 30


MOVED = "f" * 40


def test_a_hub_models_key_is_its_commit_asked_for_once(served):
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
    assert set(of_main) == {"/someone/m/resolve/main/config.json"}  # tells the cache the commit of main


def test_without_a_hub_the_commit_is_that_of_the_cache(served, monkeypatch, tmp_path):
    served()
    assert (checkpoint_fingerprint(MODEL), commit_of("someone/set", None)) == (hub.COMMIT, hub.COMMIT)
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path / "cache")
    assert (checkpoint_fingerprint(MODEL), commit_of("someone/set", None)) == (hub.COMMIT, hub.COMMIT)
    hub.redirect(monkeypatch, hub.NOWHERE, tmp_path / "empty")
    assert "someone/m" in line_of(lambda: checkpoint_fingerprint(MODEL))
    assert "someone/set" in line_of(lambda: commit_of("someone/set", None), DataError)


OLD = ModelConfig(name="old", hub_id="NeelNanda/old", family="legacy")


@pytest.fixture
def old(root):
    """The folder of a legacy model, whose tokenizer is in another repository."""
    tiny.tokenizer().save_pretrained(root / "NeelNanda" / "tokenizer")
    tiny.write_legacy(root / "NeelNanda" / "old", "NeelNanda/tokenizer")
    return root / "NeelNanda" / "old"


@pytest.mark.ci_slow
def test_a_legacy_model_needs_all_weights_and_a_tokenizer(served, old):
    served({"final.pth": Fault(status=503, times=1)})
    loaded, tokens = load_model(OLD), torch.randint(300, (2, 20))
    assert loaded.revision == hub.COMMIT
    torch.testing.assert_close(loaded.full(tokens), tiny.frozen().full(tokens), atol=1e-5, rtol=1e-5)
    assert load_model(dataclasses.replace(OLD, dtype="bfloat16")).dtype == torch.bfloat16
    weights = torch.load(old / "tiny_final.pth", weights_only=True)
    torch.save({name: weight for name, weight in weights.items() if "blocks.1." not in name}, old / "tiny_final.pth")
    served(cache="holed")
    line = line_of(lambda: load_model(OLD))
    assert "Missing key(s) in state_dict" in line
    assert "NeelNanda/old" in line
    torch.save(weights, old / "tiny_final.pth")
    shutil.rmtree(old.parent / "tokenizer")
    served(cache="without")
    assert "there is no repository NeelNanda/tokenizer" in line_of(lambda: load_model(OLD))
