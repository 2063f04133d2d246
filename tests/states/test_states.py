"""States of the same rows: one pass per model, the words' last tokens, a user's own; and their cache, to the bit."""

import functools
import os
import re
import unicodedata
from concurrent.futures import ThreadPoolExecutor
from copy import copy
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import tokenizers
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import tiny
from conftest import composed
from cutters import MAKERS, cutter
from thinkalike.config import ModelConfig
from thinkalike.data.cache import CacheEntry, read_or_compute
from thinkalike.data.recordings import recording_fingerprint
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.data.words import word_spans
from thinkalike.errors import DataError
from thinkalike.measures.folds import numbered_by_part
from thinkalike.models.labels import names_of
from thinkalike.states import stimuli as stimuli_states
from thinkalike.states.batches import array_batches
from thinkalike.states.pieces import Pieces, pieces_of_texts
from thinkalike.states.spans import has_own_state, last_tokens
from thinkalike.states.stimuli import (
    StimulusStates,
    states_of_stimuli,
    stimulus_states,
    stimulus_states_of,
    with_own_states,
)
from thinkalike.states.tokens import compared_tokens, site_numbers, sites
from thinkalike.states.word_states import word_states


def test_states_of_tokens_are_the_residuals_at_all_layers():
    model, rows = tiny.frozen(), torch.randint(300, (2, 9))
    assert sites(model, embed=True) == ["embed", 0, 1, 2, 3]
    assert site_numbers(sites(model, embed=True)) == [-1, 0, 1, 2, 3]
    for layer, states in enumerate(model.residuals(rows, sites(model))):
        torch.testing.assert_close(states, model.head(rows, layer))


def test_first_and_special_tokens_do_not_count_if_asked_for():
    rows = torch.tensor([[0, 5, 6, 0], [7, 0, 8, 9]])
    assert compared_tokens(rows).all()
    assert compared_tokens(rows, skip_first=1).tolist() == [[False, True, True, True]] * 2
    assert compared_tokens(rows, special=[0]).tolist() == [[False, True, True, False], [True, False, True, True]]


def test_the_last_token_of_a_word_holds_its_last_character():
    offsets = [(0, 0), (0, 2), (2, 3), (3, 7), (7, 7)]  # special, two of one word, one with a space in front, special
    assert last_tokens("abc def", [(0, 3), (4, 7)], offsets, "m") == [2, 3]
    assert last_tokens("é", [(0, 1)], [(0, 1), (0, 1)], "m") == [1]  # bytes of one character
    with pytest.raises(DataError, match="'def'"):
        last_tokens("abc def", [(0, 3), (4, 7)], [(0, 3)], "m")


@pytest.mark.parametrize("kind", sorted(MAKERS))
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_words_end_in_a_token_however_accents_are_written(kind, form):
    tokenizer, text = cutter(kind), unicodedata.normalize(form, "le café bien cuit à Göteborg, naïveté été clé")
    words = [match.span() for match in re.finditer(r"\S+", text)]
    encoded = tokenizer(text, return_offsets_mapping=True, add_special_tokens=False)
    found = last_tokens(text, words, encoded["offset_mapping"], kind)
    assert found == sorted(found)
    for (_, stop), token in zip(words, found, strict=True):
        assert encoded["offset_mapping"][token][0] < stop
        later = [start for start, end in encoded["offset_mapping"][token + 1 :] if end > start]
        assert all(start >= stop - 1 for start in later), "no later token holds a letter of the word"


def phrases(text: str) -> PreTrainedTokenizerFast:
    """A tokenizer that has learnt whole phrases, as SuperBPE does, and reads text that it has not seen by its bytes."""
    bpe = Tokenizer(tokenizers.models.BPE())
    bpe.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    trainer = tokenizers.trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    bpe.train_from_iterator([text] * 30, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=bpe)


@pytest.mark.parametrize(
    ("learnt", "text", "words", "expected"),
    [
        ("the dog sees", "the dog sees", ["the", "dog", "sees"], [False, False, True]),
        ("cannot", "cannot", ["can", "not"], [False, True]),
        ("don", "don't", ["do", "n't"], [False, True]),
        ("我们", "我们去", ["我", "们", "去"], [False, True, True]),
        ("dog.", "a dog.", ["a", "dog"], [True, True]),  # of punctuation that is no word
        ("dog.", "a dog.", ["a", "dog", "."], [True, False, True]),
        ("b👍🏽", "b👍🏽 👍🏽 c", ["b👍🏽", "👍🏽", "c"], [True, True, True]),
    ],
)
def test_a_word_within_a_token_has_no_state_of_its_own(learnt, text, words, expected):
    tokenizer, spans, start = phrases(learnt), [], 0
    for word in words:
        start = text.index(word, start)
        spans.append((start, start := start + len(word)))
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    assert has_own_state(text, spans, offsets, "m") == expected


def test_states_of_first_tokens_and_means_hold_no_word_before():
    offsets = [(0, 6)]  # cannot
    assert has_own_state("cannot", [(0, 3), (3, 6)], offsets, "m", "first") == [False, False]
    assert has_own_state("cannot", [(0, 3), (3, 6)], offsets, "m", "mean") == [False, False]
    assert has_own_state("cannot", [(0, 6)], offsets, "m", "mean") == [True]


def test_words_without_a_state_are_left_out_of_text_and_said(models, caplog):
    model = copy(models["gpt2"])
    model.tokenizer = phrases("the dog sees")
    assert model.tokenizer("the dog sees")["input_ids"][0] < model.vocabulary
    texts = ["a the dog sees b", "cows the dog sees"]
    found = pieces_of_texts(texts, [models["gpt2"], model], 100)
    assert [text[slice(*span)] for text, spans in zip(found.texts, found.words, strict=True) for span in spans] == [
        *("a", "sees", "b"),
        *("cows", "sees"),
    ]
    assert found.left_out == ["the", "dog"] * 2
    alone = Pieces(["the dog sees"], [[(0, 3), (4, 7), (8, 12)]])
    assert [len(states) for states in word_states(model, alone, [0])] == [1]
    assert "2 of 3 words are left out" in caplog.text


@pytest.mark.parametrize(("word", "is_refused"), [("dog", False), ("the dog sees", False), ("the", True)])
def test_stimuli_without_a_state_of_their_own_are_left_out_or_refused(word, is_refused, models, caplog):
    model = copy(models["gpt2"])
    model.tokenizer = phrases("the dog sees")
    if word == "dog":  # three stimuli of one text, the first of which ends within a token
        texts, sentence, spans = ["the dog sees"], [0, 0, 0], [(0, 3), (8, 12), (4, 12)]
    else:
        texts, sentence, spans = ["the dog sees"] * 3, [0, 1, 2], [(0, len(word))] * 3
    table = pd.DataFrame({"place": [1.0, 2.0, 4.0]})
    stimuli = Stimuli(texts, np.array(sentence), spans, [word] * 3, table)
    states, has_own = states_of_stimuli(model, stimuli)
    side = StimulusStates("m", [0], states[:1], {}, has_own=has_own)
    if is_refused:
        with pytest.raises(DataError, match="3 of 3 stimuli, such as 'the'"):
            with_own_states(stimuli, [side])
    else:
        expected = [False, True, True] if word == "dog" else [True] * 3
        assert with_own_states(stimuli, [side]).tolist() == expected
        assert ("1 of 3 stimuli" in caplog.text) == (word == "dog")
    if not has_own.all():
        with pytest.raises(DataError, match="goes on beyond them"):
            stimulus_states(model, stimuli)


@pytest.mark.parametrize(
    "text", ["the dog's 3.14, don't!", "한국어 문장", "naïve café\u200bx", "ok 👩‍👩‍👧👍🏽 <b>x</b>"]
)
def test_words_stand_between_white_space(text):
    assert word_spans(text) == [match.span() for match in re.finditer(r"\S+", text)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("我去公园。看花", ["我", "去", "公", "园。", "看", "花"]),
        ("用python写 code", ["用", "python", "写", "code"]),
        ("カメラー", ["カ", "メ", "ラ", "ー"]),
        ("สวัสดี", ["ส", "วั", "ส", "ดี"]),
        ("ខ្មែរ\u200bទៅ", ["ខ្មែ", "រ\u200b", "ទៅ"]),
    ],
)
def test_scripts_without_white_space_are_read_by_characters(text, words):
    assert [text[slice(*span)] for span in word_spans(text)] == words


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_a_words_state_is_its_last_tokens_in_any_batch(models, family):
    model = models[family]
    texts = [tiny.document(seed, words=5 + 3 * seed) for seed in range(3)]
    batch = pieces_of_texts(texts, [model], word_count=5 + 8 + 11)
    states = word_states(model, batch)
    assert [len(words) for words in batch.words] == [5, 8, 11]
    place = 0
    for text in texts:
        encoded = model.tokenizer(text, return_offsets_mapping=True)
        alone = model.residuals(torch.tensor([encoded["input_ids"]]), range(model.n_layers))
        for stop in (match.end() for match in re.finditer(r"\S+", text)):
            number = max(i for i, (a, b) in enumerate(encoded["offset_mapping"]) if a < stop <= b)
            for layer, state in enumerate(states):
                expected = alone[layer][0, number]
                assert (state[place] - expected).abs().max() < 1e-4 * expected.abs().max()
            place += 1
    assert place == len(states[0])


@pytest.mark.parametrize("family", ["gpt2", "bert"])
def test_a_state_may_be_of_the_first_token_or_the_mean(models, family):
    model, text = models[family], tiny.document(3, words=6)
    encoded = model.tokenizer(text, return_offsets_mapping=True)
    own = model.residuals(torch.tensor([encoded["input_ids"]]), [1])[0][0]
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    words = [[n for n, (a, b) in enumerate(encoded["offset_mapping"]) if a < stop and max(a, start) < b]
             for start, stop in spans]  # fmt: skip
    assert any(len(each) > 1 for each in words)
    for token, wanted in {
        "first": [own[each[0]] for each in words] + [own[0]],
        "mean": [own[each].mean(0) for each in words] + [own[words[0][0] : words[-1][-1] + 1].mean(0)],
    }.items():
        (found,) = word_states(model, Pieces([text], [[*spans, (0, len(text))]]), [1], token)
        torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-4, atol=1e-4)


def test_pieces_hold_every_word_once_and_fit_every_context(models):
    model = models["gpt2"]
    texts = [tiny.document(seed, words=150) for seed in range(3)]
    found = pieces_of_texts(texts, [model], word_count=400)
    stretches = zip(found.texts, found.words, found.documents, strict=True)
    seen = [(text[slice(*span)], document) for text, spans, document in stretches for span in spans]
    everything = [(word, document) for document, text in enumerate(texts) for word in text.split()]
    assert seen == everything[: len(seen)]
    assert 400 <= len(seen) == found.count < 450, "as many as are needed"
    assert all(len(model.tokenizer(text)["input_ids"]) <= model.context for text in found.texts)
    assert pieces_of_texts(texts, [model], word_count=1000).count == 450


def test_array_batches_hold_every_row_once():
    numbers = torch.arange(100.0)[:, None]
    first = [numbers, torch.randn(100, 5)]
    groups = torch.arange(100) // 2
    batches = array_batches([first, [numbers + 0.5], first], groups, rows_per_batch=8)
    assert (batches.total, batches.batches, batches.level) == (13, 13, "stimulus")
    assert batches.facts == {"data": {"rows": 100, "batches": 13}}
    found = [batch for pool in range(13) for batch in batches.pool(pool)]
    assert [batch.number for batch in found] == list(range(13))
    assert {len(batch.states[0][0]) for batch in found} == {7, 8}
    assert all(batch.mask is None for batch in found)
    for batch in found:
        assert torch.equal(batch.states[0][0] + 0.5, batch.states[1][0])
        assert batch.states[0] is batch.states[2], "a side that is there twice has one list"
        assert torch.equal(batch.groups, numbered_by_part(groups)[batch.states[0][0][:, 0].long()])
    drawn = torch.cat([batch.states[0][0] for batch in found])[:, 0]
    assert torch.equal(drawn.sort().values, numbers[:, 0])
    assert any(batch.states[0][0].diff(dim=0).abs().max() > 13 for batch in found), "in no order of the file"


def test_a_row_of_a_batch_has_the_name_of_its_stimulus():
    numbers = torch.arange(100.0)[:, None]
    names = [f"stimulus {row}" for row in range(100)]
    batches = array_batches([[numbers]], torch.arange(100), name_of_stimulus=names.__getitem__, rows_per_batch=8)
    (batch,) = batches.pool(3)
    found = [batch.name_of_row(row) for row in range(len(batch.groups))]
    assert found == [f"stimulus {int(row)}" for row in batch.states[0][0][:, 0]]
    with pytest.raises(IndexError):
        batch.name_of_row(len(batch.groups))


@pytest.mark.parametrize(("rows", "per_batch"), [(3, 1024), (1, 1024), (100, 3)])
def test_too_few_rows_for_a_measure_are_refused(rows, per_batch):
    with pytest.raises(DataError, match=f"={per_batch} compares"):
        array_batches([[torch.randn(rows, 3)]], torch.arange(rows), rows_per_batch=per_batch, fewest=4)


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(("rows", "per_batch", "remedies"), [
    (40, 1024, "give more stimuli, or choose a smaller measure.neighbours"),
    (300, 50, "give more stimuli, or choose a smaller measure.neighbours, or raise measure.tokens_per_batch"),
])  # fmt: skip
def test_too_few_rows_for_the_neighbours_name_that_setting(rows, per_batch, remedies):
    needs = "measure.neighbours=99 needs at least 101"
    with pytest.raises(DataError, match=f"{needs}; {remedies}$"):
        array_batches(
            [[torch.randn(rows, 3)]],
            torch.arange(rows),
            rows_per_batch=per_batch,
            fewest=101,
            needed_by="measure.neighbours=99",
        )


def test_recordings_are_named_by_what_tells_them_apart():
    model = ModelConfig(name="gpt2")
    assert names_of(["a/brain.npz", model]) == ["brain", "gpt2"]
    assert names_of(["a/gpt2.npz", model]) == ["gpt2.npz", "gpt2"]
    assert names_of(["a/x.npz", "b/y.npz"]) == ["x", "y"]
    assert names_of(["a/x.npz", "a/x.safetensors"]) == ["x.npz", "x.safetensors"]
    assert names_of(["/r/a/x.npz", "/r/b/x.npz"]) == ["a/x.npz", "b/x.npz"]
    assert names_of(["/r/a/c/x.npz", "/r/b/c/x.npz"]) == ["a/c/x.npz", "b/c/x.npz"]
    assert names_of([model, ModelConfig(name="gpt2", revision="r")]) == ["gpt2", "gpt2@r"]


def test_names_that_no_table_can_hold_are_written_with_escapes():
    not_utf_8 = [os.fsdecode(name) for name in (b"gr\xf6\xdfe.npz", b"gr\xfc\xdfe.npz")]
    assert names_of(not_utf_8) == ["gr\\xf6\\xdfe", "gr\\xfc\\xdfe"]
    assert names_of(["Icon\r.npz", "Icon\n.npz"]) == ["Icon\\r", "Icon\\n"]
    assert names_of(["a\x1b[1m/x.npz", "a\u2028/x.npz"]) == ["a\\x1b[1m/x.npz", "a\\u2028/x.npz"]
    models = [ModelConfig(name="local", path=path) for path in ("/r\r/run\r", "/s/run\r", "/größe")]
    assert names_of(models) == ["r\\r/run\\r", "s/run\\r", "größe"]
    assert names_of(["nim\u200cfa.npz"]) == ["nim\u200cfa"], "some scripts need format characters"


def test_a_recording_is_known_by_its_content_and_its_name(tmp_path):
    first, same, renamed = (tmp_path / name for name in ("a/brain.npz", "b/brain.npz", "a/other.npz"))
    for path in (first, same, renamed):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"states")
    assert recording_fingerprint(str(first)) == recording_fingerprint(str(same)) != recording_fingerprint(str(renamed))
    same.write_bytes(b"other states")
    assert recording_fingerprint(str(first)) != recording_fingerprint(str(same))


ONCE = functools.cache(composed)  # most tests ask for the same job, each with a cache of its own


@pytest.fixture
def config(checkpoints, tmp_path):
    """Composes a job of stimuli on a tiny model, with a cache of its own."""

    def of(*words, family="gpt2"):
        own = ["measure=rsa", "model=local", f"model.path={checkpoints[family]}", "stimuli.sample=40"]
        job = ONCE(*own, *words, entry="analyze")
        return replace(job, data=replace(job.data, cache=f"{tmp_path}/cache"), store=f"{tmp_path}/results")

    return of


def states_of(config):
    return stimulus_states_of(config, read_stimuli(config.stimuli), config.measure.embed)


def same(one, other):
    return all(
        a.layers == b.layers and a.origin == b.origin and all(map(torch.equal, a.states, b.states))
        for a, b in zip(one, other, strict=True)
    )


def test_cached_states_have_the_same_bits_and_the_jobs_names(config, forwards, tmp_path):
    first = states_of(config())
    once = len(forwards)
    assert same(first, states_of(config()))
    (other,) = states_of(config("model.name=another"))
    assert len(forwards) == once > 0
    assert (first[0].name, other.name, other.origin["name"]) == ("gpt2", "another", "another")
    (entry,) = (tmp_path / "cache" / "states").iterdir()
    assert entry.suffix == ".safetensors"
    entry.unlink()
    assert same(first, states_of(config()))
    assert len(forwards) == 2 * once


@pytest.mark.ci_slow
def test_what_can_change_a_bit_is_another_entry(config, forwards, tmp_path):
    changes = ["measure.embed=true", "model.dtype=bfloat16", "stimuli.sample=30", "model.context=48", "model.bos=true"]
    for number, change in enumerate([None, *changes], 1):
        once = len(forwards)
        states_of(config(change) if change else config())
        assert len(forwards) > once, change
        assert len(list((tmp_path / "cache" / "states").iterdir())) == number


CPU = "torch.backends.cpu.get_cpu_capability"


def test_so_are_other_weights_threads_versions_and_code(config, checkpoints, monkeypatch, tmp_path):
    fingerprint = read_stimuli(config().stimuli).fingerprint()
    keys = [stimuli_states._key_of_states(config().model, fingerprint, False)]
    keys.append(
        stimuli_states._key_of_states(ModelConfig(name="local", path=str(checkpoints["mamba"])), fingerprint, False)
    )
    with monkeypatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 7)
        keys.append(stimuli_states._key_of_states(config().model, fingerprint, False))
    others = {f"{stimuli_states.__name__}.versions_of": lambda *_: "another", CPU: lambda: "another"}
    for place, other in {**others, f"{stimuli_states.__name__}.CODE": ("states",)}.items():
        with monkeypatch.context() as patch:
            patch.setattr(place, other)
            keys.append(stimuli_states._key_of_states(config().model, fingerprint, False))
    assert len(set(keys)) == len(keys)
    assert stimuli_states._key_of_states(config().model, fingerprint, False) == keys[0]


def computing(calls, value=1.0):
    def compute():
        calls.append(value)
        return CacheEntry(
            {"0": torch.full((4, 3), value), "1": torch.ones(4, 2, dtype=torch.bfloat16)}, {"layers": [0, 1]}
        )

    return compute


def test_two_at_once_compute_it_once(tmp_path):
    calls = []
    with ThreadPoolExecutor(4) as threads:
        asked = [
            threads.submit(read_or_compute, tmp_path / "kept" / "x.safetensors", computing(calls)) for _ in range(4)
        ]
    found = [each.result() for each in asked]
    assert len(calls) == 1
    assert all(torch.equal(each.tensors["1"], found[0].tensors["1"]) for each in found)


def test_what_was_read_longest_ago_makes_room(tmp_path):
    calls = []

    def ask(name, when, most=700):  # an entry takes some 400 bytes with its header
        path = tmp_path / f"{name}.safetensors"
        read_or_compute(path, computing(calls), most)
        if path.exists():
            os.utime(path, (when, when))

    for when, (name, computed) in enumerate([("a", 1), ("b", 2), ("a", 2), ("c", 3), ("a", 3), ("b", 4)]):
        ask(name, when)
        assert len(calls) == computed, "b made room for c"
    for times in (1, 2):
        ask("large", 9, most=10)
        assert len(calls) == 4 + times, "what is larger than all may be is not kept"
