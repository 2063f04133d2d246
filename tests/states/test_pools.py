"""Batches of text are random draws: from rows of all documents to pools, from tokens of a pool to batches."""

from itertools import pairwise

import pytest
import torch

import tiny
from conftest import composed
from thinkalike.data.corpus import read_corpus
from thinkalike.errors import DataError
from thinkalike.measures import CKA
from thinkalike.measures.massive_rows import massive
from thinkalike.models.frozen import FrozenModel
from thinkalike.states.batches import ModelRuns, text_batches
from thinkalike.states.pieces import TIMES_AS_MUCH_TEXT
from thinkalike.states.tokens import sites


@pytest.fixture(scope="module")
def short_files(tmp_path_factory):
    """A folder of documents of some three rows each."""
    folder = tmp_path_factory.mktemp("short")
    for number in range(160):
        (folder / f"{number:03}.txt").write_text(tiny.document(number, words=60))
    return folder


@pytest.fixture
def config(short_files, tmp_path):
    """Composes a small job on rows of 32 tokens."""

    def of(*words):
        data = ["data=text", f"data.files=[{short_files}/*.txt]", "data.evaluation_share=0.5", "data.context=32"]
        small = ["measure.tokens_per_batch=128", "measure.batches=20", f"data.cache={tmp_path}/cache"]
        return composed("measure=cka", *data, *small, *words, entry="analyze")

    return of


@pytest.fixture
def models():
    return [tiny.frozen(), tiny.frozen(1)]


@pytest.fixture
def told(models, monkeypatch):
    """Let a state tell its token, its position, and the key of its row; returns the lengths of passes."""
    passes = []

    def residuals(self, rows, sites, *_):
        passes.append(len(rows))
        places = torch.arange(rows.shape[1]).expand_as(rows)
        return [torch.stack([rows, places, keys(rows)[:, None].expand_as(rows)], -1).double() for _ in sites]

    monkeypatch.setattr(FrozenModel, "residuals", residuals)
    return passes


def keys(rows):
    """A number that differs from row to row."""
    return (rows.long() * torch.arange(1, rows.shape[1] + 1) ** 3).sum(1)


def read(config, models):
    """All batches of a job, pool by pool."""
    at = [sites(model, config.measure.embed) for model in models]
    found = text_batches(models, at, config.data, config.measure, ModelRuns())
    return [list(found.pool(place)) for place in range(found.total)]


def rows_of(config, model, tokens=20 * 128):
    """The rows that a job reads, and their documents."""
    config.data.evaluation_tokens = TIMES_AS_MUCH_TEXT * tokens
    text = read_corpus(config.data, model.tokenizer, 32, bos=model.bos_each_row, fit_tokens=1, whole=True).report
    chosen = torch.randperm(len(text), generator=torch.Generator().manual_seed(0))[: tokens // 32].sort().values
    return text.select(chosen)


def test_every_counted_token_is_in_one_batch(config, models, told):
    job = config("measure.massive=keep", "measure.skip_first=2")
    found = [batch for pool in read(job, models[:1]) for batch in pool]
    assert told == [4] * 20, "in passes of as many rows as a batch has tokens"
    assert [batch.number for batch in found] == list(range(20))
    assert {batch.states[0][0].shape for batch in found} == {(120, 3)}
    assert all(torch.equal(batch.tokens, batch.states[0][0][:, 0].long()) for batch in found)
    seen = torch.cat([batch.states[0][0] for batch in found]).long()
    text = rows_of(job, models[0])
    names = keys(text.tokens).tolist()
    named = list(zip(text.tokens.tolist(), names, strict=True))
    whole = [(row[place], place, name) for row, name in named for place in range(2, 32)]
    assert sorted(map(tuple, seen.tolist())) == sorted(whole)
    assert min(len(batch.groups.unique()) for batch in found) > len(text.documents.unique()) / 2
    own = zip(names, text.documents.tolist(), strict=True)
    owners = {(name, place): document for name, all_of in own for place, document in enumerate(all_of)}
    groups = torch.cat([batch.groups for batch in found]).tolist()
    pairs = {(owners[name, place], group) for (_, place, name), group in zip(seen.tolist(), groups, strict=True)}
    assert len(pairs) == len(text.documents.unique()), "each document has one number in all batches"
    assert {group % 10 for _, group in pairs} == set(range(10))


def test_pools_are_random_rows_that_share_none(config, models, told, monkeypatch):
    monkeypatch.setattr("thinkalike.states.batches.POOL_TOKENS", 384)  # of three batches
    job = config()
    job.measure.batches = 20
    pools = read(job, models[:1])
    assert [[batch.number for batch in pool] for pool in pools] == [
        [0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10], [11, 12, 13], [14, 15, 16], [17, 18, 19]
    ]  # fmt: skip
    rows = [set(torch.cat([batch.states[0][0][:, 2] for batch in pool]).tolist()) for pool in pools]
    assert [len(each) for each in rows] == [8, 12, 12, 12, 12, 12, 12]
    assert not any(first & second for first, second in pairwise(rows))
    order = {name: place for place, name in enumerate(keys(rows_of(job, models[0]).tokens).tolist())}
    places = [sorted(order[name] for name in each) for each in rows]
    assert all(max(each) - min(each) > 15 for each in places), "from the whole side, not one row after the other"


@pytest.mark.parametrize(
    ("share", "times", "found"),
    [(0.03, 8, True), (0.06, 12, True), (0.002, 60, True), (0.002, 6, False), (0.03, 2.5, False), (0.13, 7, False)],
)
def test_the_few_rows_that_carry_a_layer_are_massive(share, times, found):
    """Of planted rows, a share of all and as many times as long as others: all or none."""
    plain, long = torch.randn(2000, 16) + 1, torch.zeros(2000, dtype=torch.bool)
    long[torch.randperm(2000)[: round(2000 * share)]] = True
    planted = torch.where(
        long[:, None], times * plain / plain.norm(dim=1, keepdim=True) * plain.norm(dim=1).median(), plain
    )
    outliers = massive([plain, planted.bfloat16()])
    assert torch.equal(outliers, long) if found else outliers is None
    assert massive([plain]) is None


def test_rows_that_are_not_few_over_all_layers_are_not_massive(caplog):
    """Each of many heads has long states at a few tokens of its own, as no residual stream has."""
    heads = []
    for head in range(20):
        states = torch.randn(2000, 16) + 1
        states[100 * head : 100 * head + 60] *= 12
        heads.append(states)
    assert massive(heads[:2]).sum() == 120
    assert massive(heads) is None
    assert "60% of the rows" in caplog.text
    assert massive([heads[0]] * 20).sum() == 60, "control: the same few rows at all of them"


@pytest.mark.parametrize(("times", "found"), [(12, True), (3.5, False)])
def test_rows_that_begin_their_text_may_be_many(times, found):
    plain, first = torch.randn(2000, 16) + 1, torch.arange(2000) % 4 == 0
    planted = torch.where(first[:, None], times * plain, plain)
    assert massive([planted]) is None
    outliers = massive([planted], first)
    assert torch.equal(outliers & first, outliers) and outliers.sum() > 400 if found else outliers is None


@pytest.mark.ci_slow
def test_a_measure_of_whole_rows_gets_whole_rows(config, models, told):
    pools = read(config("measure.flatten=mean", "measure.skip_first=3"), models[:1])
    assert [len(pool) for pool in pools] == [1] * 20
    found = [pool[0] for pool in pools]
    assert all(batch.states[0][0].shape == (4, 32, 3) for batch in found)
    assert all(batch.groups.shape == batch.mask.shape == (4, 32) for batch in found)
    assert not found[0].mask[:, :3].any()
    order = keys(rows_of(config(), models[0]).tokens).tolist()
    drawn = [total for batch in found for total in batch.states[0][0][:, 0, 2].tolist()]
    assert drawn != order
    assert sorted(drawn) == sorted(order)


@pytest.mark.ci_slow
def test_words_are_drawn_from_pieces_of_all_documents(config, models):
    models[1].tokenizer = tiny.other_tokenizer(300)
    found = [batch for pool in read(config("measure.batches=30"), models) for batch in pool]
    assert len(found) == 30
    assert {len(layer) for batch in found for side in batch.states for layer in side} <= set(range(118, 129))
    documents = set(torch.cat([batch.groups for batch in found]).tolist())
    assert all(len(batch.groups.unique()) > 0.6 * len(documents) for batch in found)


@pytest.fixture
def planted(models, monkeypatch):
    """Let states be what their position alone decides, the same in all models, and noise of each model's own."""
    table = 3 * torch.randn(32, 8)

    def residuals(self, rows, sites, *_):
        chance = torch.Generator().manual_seed(models.index(self) + 2 * int(rows.sum()))
        return [table + torch.randn(*rows.shape, 8, generator=chance) for _ in sites]

    monkeypatch.setattr(FrozenModel, "residuals", residuals)


@pytest.mark.ci_slow
def test_given_the_position_its_effect_counts_for_nothing(config, models, planted):
    values = {}
    for given in ("token", "token_position"):
        job = config("measure.tokens_per_batch=1024", "measure.batches=4", f"measure.conditional_on={given}")
        metric = CKA(4, 4, conditional_on="token")
        for pool in read(job, models):
            for batch in pool:
                metric.update(*batch.states, number=batch.number, groups=batch.tokens)
        values[given] = metric.compute().with_bias
    assert values["token"].min() > 0.8
    assert values["token_position"].abs().max() < 0.03


def test_a_pool_without_a_frequent_token_is_refused(config, models, monkeypatch):
    monkeypatch.setattr("thinkalike.states.batches.FEWEST_HSIC_ROWS", 10**4)
    with pytest.raises(DataError, match="batches 0 to 15: no group or token has 10000 of the 2048 rows"):
        read(config("measure.conditional_on=token_position", "measure.batches=16"), models)


def test_a_pool_of_wide_states_has_fewer_batches(config, models, told, monkeypatch):
    monkeypatch.setattr("thinkalike.states.batches.POOL_BYTES", 6 * 4 * 128 * models[0].n_layers * models[0].d_model)
    job = config()
    job.measure.massive = "keep"
    assert [len(pool) for pool in read(job, models[:1])] == [5, 5, 5, 5], "of at most six batches"
    monkeypatch.setattr("thinkalike.states.batches.POOL_BYTES", 1)
    assert [len(pool) for pool in read(job, models[:1])] == [4, 4, 4, 4, 4]


@pytest.mark.parametrize(("held", "row"), [pytest.param(None, 80, marks=pytest.mark.ci_slow), (1, 64)])
def test_rows_are_short_where_few_states_are_in_memory(config, models, told, monkeypatch, held, row):
    models[0].context = 128
    if held:
        monkeypatch.setattr("thinkalike.states.batches.POOL_BYTES", held)
    (first, *_), *_ = read(config("data.context=null"), models[:1])
    assert first.states[0][0][:, 1].max() == row - 1
