"""Stitches between models with different tokenizers, from the rows to the table, and figure."""

import contextlib
import json
import math
from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

import cutters
import tiny
from conftest import composed
from thinkalike.config import DataConfig
from thinkalike.data.alignment import check_alignable
from thinkalike.data.corpus import read_corpus
from thinkalike.data.paired import AlignedRows, PairedReader, SourceTokenizer
from thinkalike.data.rows import PairedRows, TokenRows
from thinkalike.errors import DataError, ModelError
from thinkalike.evaluation.stitched_losses import document_sums
from thinkalike.instruments.stitching.closed_forms import ClosedForms
from thinkalike.instruments.stitching.setting import load_setting
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.training.data import StepData
from thinkalike.training.stitching import StitchTraining


@pytest.fixture(scope="module")
def recut(tmp_path_factory):
    """Folders of minis of one seed: relabelled, with other tokens, and wide with other tokens."""
    root = tmp_path_factory.mktemp("recut")
    tiny.write_mini(root / "plain")
    tiny.relabelled(root / "relabelled")
    tiny.write_mini(root / "other", cutter=tiny.other_tokenizer())
    tiny.write_mini(root / "wide", cutter=tiny.other_tokenizer(), d_model=48, d_head=12)
    return root


@pytest.fixture
def words(small_stitching, recut):
    """The command line of a small job between two of them."""

    def make(source, target, *more):
        paths = [f"model.path={recut}/{source}", f"target.path={recut}/{target}", f"model.name={source}"]
        small = [f"target.name={target}", "data.evaluation_tokens=2048", "layers=[[0,0],[2,2]]", "logger=none"]
        return [*small_stitching, *paths, *small, *more]

    return make


def corpus_of(data: DataConfig, source, target, reads=64):
    """Rows of 32 of the target's tokens, for a source that reads so many of its own."""
    reader = SourceTokenizer("source", source, bos=False, context=reads)
    return read_corpus(data, target, 32, bos=False, fit_tokens=2048, source=reader)


def stretches(tokens, tokenizer):
    """The documents of a row, decoded."""
    return tokenizer.decode(tokens.tolist()).split("<|endoftext|>")


def test_both_models_read_the_same_text_in_every_row(small_stitching):
    data = composed(*small_stitching).data
    source, target = tiny.other_tokenizer(), tiny.tokenizer()
    corpus = corpus_of(data, source, target)
    for rows in (corpus.fit, corpus.report):
        assert isinstance(rows, PairedRows)
        for number in range(20):
            target_stretches = stretches(rows.tokens[number], target)
            source_tokens = rows.source_tokens[number]
            source_documents = rows.source_documents[number]
            source_length = int((source_documents >= 0).nonzero().max()) + 1
            source_stretches = stretches(source_tokens[:source_length], source)
            if source_tokens[0] == source.eos_token_id:
                source_stretches = source_stretches[1:]
            for target_text, source_text in zip(target_stretches, source_stretches, strict=False):
                assert source_text in target_text, "a source token belongs to one row and document"
                left_out = len(target_text) - len(source_text)
                assert left_out < 12, "no more is left out than tokens on the edges"
            source_documents = source_documents[source_documents >= 0]
            assert set(source_documents.tolist()) <= set(rows.documents[number].tolist())


def model_of(cutter):
    """A tiny random model with this tokenizer."""
    module = tiny.native(vocabulary=len(cutter))
    return FrozenModel(module, FAMILIES["native"], cutter, name="tiny", context=64)


def gathered(texts, target, source):
    """The states of the first 14 tokens that a target makes of each text."""
    reader = PairedReader(target, SourceTokenizer("source", source.tokenizer, False, 64), bos=False)
    numbers = torch.tensor([list(each)[:14] for each in reader(texts)], dtype=torch.int32)
    owners = torch.arange(len(texts), dtype=torch.int32)[:, None].expand_as(numbers).contiguous()
    streams = reader.streams()
    rows = AlignedRows.of(TokenRows(numbers, owners), reader, streams).paired_rows(reader, streams)
    return rows, rows.source_states(source, [tiny.LAYERS - 1])[0]


@pytest.mark.parametrize("source", ["bytes", "composed bytes", "pieces", "unigram"])
@pytest.mark.parametrize("target", ["more bytes", "words"])
def test_text_that_comes_later_changes_no_state(target, source):
    """Two texts that begin alike: the states of the tokens of their common words are the same."""
    begin = "naïve 漢字 the"
    tails = (" mat and the mats sat there", " 漢字とかな, 中文字 café", "\n\n\t x + 1  the cat")
    texts = [f"{begin}{tail} j k q w z j k q w z" for tail in tails]
    rows, states = gathered(texts, cutters.cutter(target), model_of(cutters.cutter(source)))
    tokens = rows.tokens
    alone = len(cutters.cutter(target)(begin, add_special_tokens=False)["input_ids"])
    same = min(alone, int((tokens == tokens[0]).all(0).long().cumprod(0).sum()))
    assert 3 < same < 14
    for other in states[1:]:
        torch.testing.assert_close(other[:same], states[0, :same], atol=1e-5, rtol=0)
    assert (states[1, same:] - states[0, same:]).abs().max() > 0.1, "control"


def test_the_source_reads_no_token_that_begins_before_its_row():
    """And where it has none yet, its row begins with EOS."""
    target, source = tiny.tokenizer(), tiny.other_tokenizer()
    reader = PairedReader(target, SourceTokenizer("source", source, False, 64), bos=False)
    (numbers,) = reader(["abab habab cab"])
    streams = reader.streams()
    for start in range(3, len(numbers) - 4):
        part = torch.tensor([list(numbers[start : start + 4])], dtype=torch.int32)
        packed = TokenRows(part, torch.zeros_like(part))
        rows = AlignedRows.of(packed, reader, streams).paired_rows(reader, streams)
        source_tokens = rows.source.tokens[0]
        source_text = source.decode(source_tokens[source_tokens != source.eos_token_id].tolist())
        assert source_text in target.decode(rows.tokens[0].tolist())
        positions = rows.source.positions[0]
        assert (positions[1:] >= positions[:-1]).all()
        begins_with_end = source_tokens[0] == source.eos_token_id
        assert begins_with_end == (rows.source.documents[0, 0] < 0)


@pytest.mark.parametrize(("target_bos", "source_bos"), [(True, True), (True, False), (False, True)])
def test_rows_begin_with_bos_where_a_model_expects_it(small_stitching, target_bos, source_bos):
    data = composed(*small_stitching).data
    target, source = tiny.tokenizer(), tiny.other_tokenizer()
    reader = SourceTokenizer("source", source, source_bos, 64)
    rows = read_corpus(data, target, 32, bos=target_bos, fit_tokens=512, source=reader).report
    positions = rows.source.positions
    assert (rows.tokens[:, 0] == target.bos_token_id).all() == target_bos
    if source_bos or target_bos:  # whose state can be nothing but what begins a row
        assert (rows.source_tokens[:, 0] == source.bos_token_id).all()
    assert (positions >= 0).all()
    assert (positions[:, 0] == 0).all() or not target_bos
    forced = read_corpus(replace(data, bos=True), target, 32, bos=False, fit_tokens=512, source=reader).report
    assert (forced.tokens[:, 0] == target.bos_token_id).all()


def test_rows_get_shorter_until_the_source_can_read_them(small_stitching):
    data, parts = composed(*small_stitching).data, (tiny.other_tokenizer(), tiny.tokenizer())
    short = corpus_of(data, *parts, reads=20).report
    assert short.context < 32
    assert short.source_tokens.shape[1] <= 20
    with pytest.raises(DataError, match="source reads at most 1 tokens"):
        corpus_of(data, *parts, reads=1)


@pytest.mark.ci_slow
def test_the_cache_tells_sources_apart_and_finds_them_again(small_stitching, monkeypatch):
    data, target = composed(*small_stitching).data, tiny.tokenizer()
    made = []
    pack = SourceTokenizer.pack
    monkeypatch.setattr(SourceTokenizer, "pack", lambda *args: made.append(1) or pack(*args))
    first = corpus_of(data, tiny.other_tokenizer(), target)
    again = corpus_of(data, tiny.other_tokenizer(), target)
    assert len(made) == 1
    assert torch.equal(again.report.packed(), first.report.packed())
    for name in ("documents", "target_bytes", "source_bytes", "document_hashes"):
        assert torch.equal(getattr(again.report, name), getattr(first.report, name))
    others = [
        corpus_of(data, tiny.other_tokenizer(320), target),
        corpus_of(data, tiny.other_tokenizer(), target, reads=48),
    ]
    assert len(made) == 3
    assert not torch.equal(others[0].report.source_tokens[:9, :9], first.report.source_tokens[:9, :9])


def interrupted(cli, *command):
    """Run a job up to a step between two states, and then the same command again."""
    step = StitchTraining.training_step

    def failing(self, rows, number):
        if self.global_step == 3:
            raise DataError("stopped here")
        return step(self, rows, number)

    with mock.patch.object(StitchTraining, "training_step", failing):
        assert "stopped here" in cli("train.py", *command).error
    return cli("train.py", *command)


@pytest.mark.ci_slow
def test_jobs_report_penalties_in_bits_per_byte(cli, words, tmp_path):
    resumed = interrupted(cli, *words("other", "plain", f"store={tmp_path}/again", "trainer.checkpoint_every=2"))
    assert "resuming from" in resumed.stderr
    done = cli("train.py", *words("other", "plain"))
    for name in ("table.csv", "details.csv", "stitch.safetensors"):
        assert (resumed.result.folder / name).read_bytes() == (done.result.folder / name).read_bytes()
    table, scalars, arrays = done.result.tables["details"], done.result.scalars, done.result.arrays
    assert "source loss" not in done.stdout  # per token of another kind
    assert 0.3 < scalars["aligned_exactly"] < 1
    assert sum(scalars[f"aligned_{how}"] for how in ("exactly", "earlier", "nowhere")) == pytest.approx(1)
    bits = table["penalty_bits_per_byte"]
    assert (bits - (table["bits_per_byte"] - table["target_bits_per_byte"])).abs().max() < 1e-9
    assert bits.between(table["penalty_bits_per_byte_low"], table["penalty_bits_per_byte_high"]).all()
    per_byte = arrays["tokens"].sum() / arrays["target_bytes"].sum() / math.log(2)
    assert (bits - table["penalty"] * per_byte).abs().max() < 1e-9
    assert (table["source_loss"] - arrays["source"].sum() / arrays["source_tokens"].sum()).abs().max() < 1e-9
    assert abs(arrays["source_bytes"].sum() / arrays["target_bytes"].sum() - 1) < 0.05


@pytest.mark.ci_slow
def test_a_model_whose_tokens_have_other_numbers_is_itself(cli, words):
    more = ("stitch=least_squares", "stitch.steps=4", "stitch.controls=true")
    given = [word for word in words("relabelled", "plain", *more) if not word.startswith("stitch.warmup")]
    result = cli("train.py", *given).result
    table = result.tables["details"]
    assert result.scalars["aligned_exactly"] == 1
    nothing = {"identity_penalty": 1e-6, "penalty": 1e-3, "distance": 1e-2}
    assert all(table[name].abs().max() < most for name, most in nothing.items())
    for unit in ("loss", "bits_per_byte"):
        assert (table[f"source_{unit}"] - table[f"target_{unit}"]).abs().max() < 1e-6
    assert table[["shuffled_penalty", "random_source_penalty"]].abs().min(axis=None) > 1e-3


@pytest.mark.ci_slow
def test_a_relabelled_model_trains_as_with_one_tokenizer(words):
    settings = [load_setting(composed(*words(source, "plain"))) for source in ("plain", "relabelled")]
    assert [isinstance(setting.corpus.fit, PairedRows) for setting in settings] == [False, True]
    for loss in ("cross_entropy", "kl", "mse"):
        losses = []
        for setting in settings:
            rows, config = setting.corpus.fit, replace(setting.config, loss=loss)
            given = setting.source, setting.target, [(0, 1), (3, 2)], config, 0
            module = StitchTraining(*given, layout=rows.layout)
            batch = StepData(rows.packed(), config.tokens_per_step, config.steps, 0, rows.context).batch(1)
            losses.append(torch.stack(module.losses(batch)))
            assert len(batch) == 256 // 32, "only the target's tokens count"
        torch.testing.assert_close(losses[1], losses[0], atol=1e-6, rtol=0)
        assert losses[0].std() > 1e-3


@pytest.mark.ci_slow
def test_widths_bos_and_closed_forms_go_with_other_tokenizers(words):
    setting = load_setting(composed(*words("wide", "plain", "stitch=least_squares", "model.bos=true")))
    fit = setting.corpus.fit
    assert (fit.source_tokens[:, 0] == setting.source.tokenizer.bos_token_id).all()
    forms = ClosedForms(setting)
    assert sum(half.n for half in forms.moments.halves) == len(fit) * fit.context
    maps = forms.maps("least_squares")
    shifted = [lambda state, phi=phi: phi(state.roll(1, 1)) for phi in maps]
    rows, named = setting.corpus.report, {"stitch": maps, "shifted": shifted}
    sums = document_sums(setting.source, setting.target, setting.layer_pairs, named, rows, len(rows))
    assert sums["stitch"].sum() != sums["shifted"].sum()
    assert sums["distance"].sum() / 2 / sums["tokens"].sum() < 1


def changed(change, **options):
    whole = json.loads(tiny.other_tokenizer().backend_tokenizer.to_str())
    change(whole)
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole)), **options)


LOWER = {"type": "Lowercase"}
STRIP = {"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "StripAccents"}]}
SAME_TEXT = [
    {"type": "NFC"}, {"type": "NFKC"}, {"type": "NFD"}, {"type": "Prepend", "prepend": "▁"}, {"type": "ByteLevel"},
    {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
    {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True, "strip_accents": None}
    | {"lowercase": False},
]  # fmt: skip


@pytest.mark.parametrize("normalizer", [*SAME_TEXT, LOWER, STRIP], ids=lambda each: each["type"])
def test_tokenizers_that_change_letters_differently_are_refused(normalizer):
    cutter = changed(lambda whole: whole.update(normalizer=normalizer))
    first, second = (SimpleNamespace(name=name, tokenizer=t) for name, t in (("a", cutter), ("b", tiny.tokenizer())))
    check_alignable(first, first)
    for pair in ((first, second), (second, first)):
        with contextlib.nullcontext() if normalizer in SAME_TEXT else pytest.raises(ModelError, match="aligned"):
            check_alignable(*pair)
