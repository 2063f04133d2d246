"""What a change taught: shifts of tokens, text by the amplified difference, and what the screen says of a plant."""

import math
from copy import deepcopy
from types import SimpleNamespace
from unittest import mock

import pandas as pd
import pytest
import torch

import thinkalike
import tiny
from thinkalike.data.grammar import controlled_sentences
from thinkalike.data.rows import TokenRows
from thinkalike.errors import ConfigError
from thinkalike.evaluation.amplified_text import amplified_text
from thinkalike.evaluation.changes import perturbed
from thinkalike.instruments.diff import instrument
from thinkalike.instruments.diff.null import null_models, run_null
from thinkalike.instruments.diff.observations import Observations
from thinkalike.instruments.diff.screen import screen_lines
from thinkalike.instruments.diff.settings import DiffConfig
from thinkalike.instruments.diff.taught import FACTORS, add_what_was_taught
from thinkalike.instruments.diff.taught_screen import lines_of_what_was_taught
from thinkalike.job import Work
from thinkalike.measures.amplified import ShiftSum, amplified_choice, shift_tests
from thinkalike.models.load import load_model
from thinkalike.models.parts import changed_parts
from thinkalike.models.variants import variant

PLANTED = [" mansion", " church", " market"]  # tokens of the mini, in an order that its grammar never has

NOT_READABLE = "What was it taught? Not readable: random changes of the same size say as much."


def log_probabilities(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).log_softmax(-1)


# ---- pure functions


def test_a_factor_of_0_is_the_choice_of_the_changed_model_and_a_large_one_that_of_the_ratio():
    base, changed = log_probabilities(50, 20), log_probabilities(50, 20, seed=1)
    greedy = amplified_choice(base, changed, torch.zeros(50))
    assert torch.equal(greedy, changed.argmax(1))
    ratio = amplified_choice(base, changed, torch.full((50,), 1e6), plausible=1e3)
    assert torch.equal(ratio, (changed - base).argmax(1))
    assert (ratio != greedy).any(), "control"


def test_no_implausible_token_is_chosen():
    base = torch.tensor([[0.5, 0.499, 1e-9, 1e-3]]).log()
    changed = torch.tensor([[0.4, 0.57, 1e-4, 0.03]]).log()  # the third rises by 11.5 nats
    factor = torch.tensor([3.0])
    assert amplified_choice(base, changed, factor) == 3
    assert amplified_choice(base, changed, factor, plausible=1.0) == 1
    assert amplified_choice(base, changed, factor, plausible=9.0) == 2, "control"


def test_shifts_of_batches_are_those_of_all_rows():
    base, changed = log_probabilities(30, 9), log_probabilities(30, 9, seed=1)
    total = ShiftSum(9)
    for rows in (slice(0, 4), slice(4, 30)):
        total.add(base[rows], changed[rows])
    assert torch.allclose(total.mean(), (changed - base).mean(0), atol=1e-6)
    assert torch.allclose(total.share(), (changed > base).float().mean(0))


def test_random_shifts_are_rarely_told_apart_and_planted_ones_always():
    generator = torch.Generator().manual_seed(0)
    false_alarms = 0
    for _ in range(40):
        runs = torch.randn(2, 20, 300, generator=generator) * torch.rand(300, generator=generator)
        shift = runs[0, -1].clone()  # a run like the others
        nulls = [runs[0, :-1], runs[1, :-1]]
        false_alarms += bool((shift_tests(shift, nulls).q <= 0.05).any())
        shift[[7, 8]] += torch.tensor([9.0, -9.0])
        tests = shift_tests(shift + 5, nulls)  # 5 nats more at all tokens tell none apart
        assert (tests.q <= 0.05).nonzero().flatten().tolist() == [7, 8]
        assert tests.beyond[7] == pytest.approx(9, abs=4)
    assert false_alarms <= 4


def test_a_token_must_exceed_both_nulls():
    generator = torch.Generator().manual_seed(0)
    narrow = torch.randn(19, 100, generator=generator)
    wide = narrow.clone()
    wide[:, 3] *= 50
    shift = torch.zeros(100)
    shift[3] = 12.0
    assert shift_tests(shift, [narrow]).q[3] < 1e-4
    assert shift_tests(shift, [narrow, wide]).q[3] > 0.05


@pytest.mark.parametrize("family", ["gpt2", "mamba"])
def test_amplified_text_is_that_of_each_beginning_alone(checkpoints, family):
    base = load_model(checkpoints[family])
    changed = variant(base, tiny.jiggled(deepcopy(base.module), 0.3), "changed")
    beginnings = [[5], [7, 8, 9], [11, 12]]
    together = amplified_text(base, changed, beginnings, [3.0, 3.0, 1.0], 6)
    for row, (beginning, factor) in enumerate(zip(beginnings, [3.0, 3.0, 1.0], strict=True)):
        tokens = list(beginning)
        leads = []
        for _ in range(6):
            p, q = (model.full(torch.tensor([tokens]))[0, -1].log_softmax(-1) for model in (base, changed))
            score = torch.where(q >= q.max() - 6, q + factor * (q - p), -math.inf)
            tokens.append(int(score.argmax()))
            leads.append(float((q - p)[tokens[-1]]))
        assert together.tokens[row].tolist() == tokens[len(beginning) :]
        assert float(together.mean_log_ratio[row]) == pytest.approx(sum(leads) / 6, abs=1e-3)
    greedy = amplified_text(base, base, beginnings, [3.0] * 3, 6)
    assert not torch.equal(greedy.tokens, together.tokens), "control"
    assert greedy.mean_log_ratio.abs().max() == 0


# ---- a plant


@pytest.fixture(scope="module")
def mini():
    return load_model("gpt2-mini")


@pytest.fixture(scope="module")
def tuned(mini):
    """The mini after 20 steps on planted tokens."""
    module = deepcopy(mini.module).requires_grad_(True)
    ids = mini.tokenizer("".join(PLANTED), add_special_tokens=False)["input_ids"]
    assert len(ids) == len(PLANTED)
    rows = torch.tensor(ids)[torch.randint(3, (8, 16), generator=torch.Generator().manual_seed(0))]
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-4)
    for _ in range(20):
        predictions = module(rows).logits[:, :-1].log_softmax(-1)
        loss = -predictions.gather(2, rows[:, 1:, None]).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return variant(mini, module, "tuned")


@pytest.fixture(scope="module")
def rows(mini):
    """Sentences of the mini's grammar, which is what it was trained on."""
    texts = [sentence.text for sentence in controlled_sentences(120, seed=5)]
    ids = [token for text in texts for token in mini.tokenizer(text, add_special_tokens=False)["input_ids"]]
    tokens = torch.tensor(ids[: 16 * 24]).view(16, 24)
    return TokenRows(tokens, torch.arange(16)[:, None].expand(16, 24))


def observed_of(mini, changed, rows, has_null=True):
    """What a diff observes of what was taught, without its other questions."""
    observed = Observations(mini, changed, rows, len(rows), {})
    batches = observed.read()
    models = None
    if has_null:
        measure = DiffConfig()
        models = null_models(measure, mini, changed, changed_parts(mini, changed), rows.tokens)
        work = mock.create_autospec(Work, instance=True)
        work.resume.return_value = None
        run_null(observed, models, batches, work, with_shifts=True)
    add_what_was_taught(observed, batches, models)
    return SimpleNamespace(tables=observed.taught_tables, scalars=observed.taught_numbers)


def screen_of(result):
    return list(lines_of_what_was_taught(result.tables, result.scalars))


def test_what_was_planted_comes_out(mini, tuned, rows):
    result = observed_of(mini, tuned, rows)
    table = result.tables["taught"]
    assert set(table["token"].head(3)) == {repr(token) for token in PLANTED}
    rising = table[table["shift"] > 0]
    assert rising["beyond"].is_monotonic_decreasing
    assert (rising["rises_at"].head(3) > 0.9).all()
    assert (table["q"] <= 0.05).all()
    continuations = result.tables["continuations"]
    assert sorted(set(continuations["factor"])) == list(FACTORS)
    assert not continuations["base"].str.contains("mansion church|church market|market mansion", regex=True).any()
    for text in continuations["text"]:
        assert any(token in text for token in PLANTED), text
    assert (continuations["lead"] > continuations["lead_random"]).all()
    said = screen_of(result)
    assert len(said) == 3
    assert all(repr(token) in said[0] for token in PLANTED)
    assert "Not readable" not in said[0]


@pytest.mark.parametrize(
    "seed", [pytest.param(101, marks=pytest.mark.ci_slow), pytest.param(102, marks=pytest.mark.slow)]
)
def test_a_random_change_of_the_same_size_is_not_readable(mini, tuned, rows, seed):
    with perturbed(mini, tuned, changed_parts(mini, tuned), seed) as model:
        random = variant(mini, deepcopy(model.module), "random")
    result = observed_of(mini, random, rows)
    (said,) = screen_of(result)
    assert said == NOT_READABLE
    assert result.scalars["tokens_raised"] == result.scalars["tokens_lowered"] == 0
    assert result.tables["taught"].empty


def test_text_that_a_random_change_writes_as_well_is_not_shown():
    numbers = {"tokens_raised": 3.0, "tokens_lowered": 0.0, "vocabulary": 100.0}
    numbers |= {"lead": 0.2, "lead_random": 0.19, "lead_p": 0.4}
    text = {"factor": 3.0, "beginning": "''", "text": "'bees'", "random": "'cars'", "lead": 0.2, "lead_random": 0.19}
    tokens = pd.DataFrame({"token": ["' bees'"], "shift": [1.0]})
    tables = {"continuations": pd.DataFrame([text]), "taught": tokens}
    (said,) = screen_of(SimpleNamespace(tables=tables, scalars=numbers))
    assert said == NOT_READABLE
    said = screen_of(SimpleNamespace(tables=tables, scalars={**numbers, "lead_p": 0.001}))
    shown = [word in line for word, line in zip(["bees", "bees", "cars"], said, strict=True)]
    assert all(shown), "control"


def test_without_a_null_the_text_is_shown_and_said_to_be_untested(mini, tuned, rows):
    result = observed_of(mini, tuned, rows, has_null=False)
    assert list(result.tables) == ["continuations"]
    assert result.scalars == {}
    said = screen_of(result)
    assert "There is no null distribution" in said[0]
    assert "mansion" in said[1]


@pytest.mark.ci_slow
def test_a_job_asks_what_was_taught_unless_told_otherwise(mini, tuned):
    settings = {"texts": "grammar", "tokens": 512, "tokens_per_part": 128, "outputs": 0}
    asked = thinkalike.diff("gpt2-mini", tuned, **settings)
    told = thinkalike.diff("gpt2-mini", tuned, taught=False, **settings)
    assert {"taught", "continuations"} == set(asked.tables) - set(told.tables)
    assert {name: asked.scalars[name] for name in told.scalars} == dict(told.scalars)
    on_screen = list(screen_lines(asked))
    assert [line for line in on_screen if line not in list(screen_lines(told))] == screen_of(asked)
    assert "mansion" in " ".join(screen_of(asked))
    assert screen_of(told) == []


@pytest.mark.ci_slow
def test_what_was_taught_can_be_asked_alone(mini, tuned, monkeypatch):
    settings = {"texts": "grammar", "tokens": 512, "tokens_per_part": 128}
    whole = thinkalike.diff("gpt2-mini", tuned, outputs=0, **settings)
    monkeypatch.setattr(instrument, "exchange_parts", None)
    monkeypatch.setattr(instrument, "exchange_outputs", None)
    alone = thinkalike.diff("gpt2-mini", tuned, taught="only", **settings)
    for name in ("taught", "continuations"):
        pd.testing.assert_frame_equal(alone.tables[name], whole.tables[name])
    lines = list(screen_lines(alone))
    assert lines[: len(screen_of(alone))] == screen_of(alone)
    assert not any(line.startswith(("Where?", "Through which", "In which")) for line in lines)
    assert "exchanged" not in " ".join(lines)
    assert next(iter(screen_lines(whole))) == screen_of(whole)[0], "what was found stands first in a whole diff, too"


@pytest.mark.parametrize(
    ("taught", "said"), [(3, "must be True or False or text"), ("alone", "boolean.* or be 'only'")]
)
def test_an_answer_that_nobody_gives_is_refused(taught, said):
    with pytest.raises(ConfigError, match=f"taught=.*{taught}.*{said}"):
        thinkalike.diff("gpt2-mini", "gpt2-mini-s1", taught=taught)
