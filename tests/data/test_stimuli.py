"""Stimuli: the grammar yields nothing twice; samples balance; files give what they say, or an error."""

import csv
import doctest
import inspect
import json
import os
import re
import subprocess
import sys
import warnings
import zipfile
from collections import Counter
from dataclasses import replace
from datetime import date
from decimal import Decimal, localcontext
from fractions import Fraction
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow
import pytest
import torch
from safetensors.torch import save_file

import thinkalike
from conftest import ROOT
from thinkalike.config import StimuliConfig
from thinkalike.data.grammar import (
    Pattern,
    controlled_sentences,
    crossed_sentences,
    derivations,
    lexicon,
    patterns,
    with_ed,
)
from thinkalike.data.recordings import read_recording
from thinkalike.data.stimuli import Stimuli, controlled_stimuli, crossed_stimuli
from thinkalike.data.tables import checked_frame, read_conllu, read_stimuli, read_table, with_named_index
from thinkalike.errors import DataError, natural_order
from thinkalike.inputs import stimuli_config
from thinkalike.measures.kinds import kind_of

COLUMNS = ["Word length", "Gender", "Number", "PoS", "Tense", "Person", "Word position", "Question"]


def printed(value) -> str:
    if pd.isna(value):
        return "NaN"
    return str(int(value)) if isinstance(value, float) else str(value)


GRAMMATICAL = (
    "they sing; did you sing; does no woman know me; which princes did Mary see; who saw them; these boys love her; "
    "you thank every king; a wife cried"
)
OF_THE_LARGE = "the tall woman sings; a woman sings in the garden; which brave girls did a teacher hug near the garden"
UNGRAMMATICAL = (
    "they sings; the woman play; does you sing; did you sang; do Mary see him; this boys sing; these boy sings; "
    "which men sneezes; who sing; I see me; we saw us; him sings; Mary vanished him; Mary saw; the Mary sings"
)


def test_only_grammatical_sentences_have_a_derivation():
    for texts, size, count in (
        (GRAMMATICAL, "small", 1), (GRAMMATICAL, "large", 1), (OF_THE_LARGE, "small", 0), (OF_THE_LARGE, "large", 1),
        (UNGRAMMATICAL, "small", 0), (UNGRAMMATICAL, "large", 0),
    ):  # fmt: skip
        for text in texts.split("; "):
            assert len(derivations(text, size)) == count, (text, size)


@pytest.mark.parametrize(
    ("text", "word", "tense", "number", "person"),
    [
        ("they sing", "sing", "present", "plural", None),
        ("I sing", "sing", "present", "singular", None),
        ("you sing", "sing", "present", "singular", None),
        ("he sings", "sings", "present", "singular", "3"),
        ("they sang", "sang", "past", None, None),
        ("did he sing", "sing", "past", None, None),
        ("did he sing", "did", "past", None, None),
        ("does he sing", "does", "present", "singular", "3"),
        ("do they sing", "do", "present", "plural", None),
        ("who sings", "sings", "present", "singular", "3"),
    ],
)
def test_verbs_carry_what_their_rules_say(text, word, tense, number, person):
    (derived,) = derivations(text)
    (found,) = [each for each in derived.words if each.form == word]
    assert (found.tense, found.number, found.person) == (tense, number, person)


def shared(rules: tuple[Pattern, ...]) -> int:
    """How many pairs of patterns have a sentence in common; a slot that has a form twice counts, too."""
    forms = [[{word.form for word in slot} for slot in slots] for _, slots in rules]
    twice = sum(
        len(slot) > len(form)
        for rule, sets in zip(rules, forms, strict=True)
        for slot, form in zip(rule.slots, sets, strict=True)
    )
    return twice + sum(
        len(a) == len(b) and not any(x.isdisjoint(y) for x, y in zip(a, b, strict=True))
        for a, b in combinations(forms, 2)
    )


@pytest.mark.parametrize("size", ["small", "large", "crossed"])
def test_no_sentence_is_made_twice(size):
    """So that features are functions of the sentence, and the sizes of patterns add up to the size of the language."""
    rules = patterns(size)
    assert shared(rules) == 0
    assert shared((*rules, rules[0])) == 1, "control: a pattern with a twin"
    doubled = rules[0]._replace(slots=[rules[0].slots[0] + rules[0].slots[0][:1], *rules[0].slots[1:]])
    assert shared((doubled,)) == 1, "control: a word with a twin"


def test_the_crossed_grammar_gives_all_combinations():
    sentences = crossed_sentences()
    texts = {each.text for each in sentences}
    assert len(sentences) == len(texts) == 588
    assert {len(each.words) for each in sentences} == {2, 3, 4, 5}
    assert {"I see him", "the woman falls", "did they sing", "which men saw the woman", "who do you see"} <= texts
    assert all(derivations(text, "crossed") for text in sorted(texts)[::20])
    one = {"the": "the", "woman": "man", "man": "woman", "women": "men", "men": "women", "she": "he", "he": "she"}
    one |= {"her": "him", "him": "her"}
    turned = {" ".join(one.get(form, form) for form in text.split()) for text in texts}
    assert turned == texts, "whatever is said of a woman is said of a man"
    assert {text.replace("sang", "fell") for text in texts if "sang" in text} <= texts


def test_crossed_stimuli_are_every_word_of_them():
    stimuli = crossed_stimuli()
    assert len(stimuli) == sum(len(each.words) for each in crossed_sentences()) == 2396
    assert stimuli.names == COLUMNS
    ((_, _, strongest),) = stimuli.correlation().strongest(1)
    assert abs(strongest) < 0.6


@pytest.mark.parametrize("kind", ["controlled", "crossed"])
def test_grammar_features_are_chosen_with_declared_kinds(kind):
    kinds = {"Word position": "nominal", "Tense": ["present", "past"]}
    config = StimuliConfig(kind=kind, sentences=20, features=["Tense", "PoS", "Word position"])
    plain, declared = (read_stimuli(each) for each in (config, replace(config, kinds=kinds)))
    assert plain.names == ["Tense", "PoS", "Word position"]
    assert plain.kinds == {"Tense": "nominal", "PoS": "nominal", "Word position": "numeric"}
    assert declared.kinds == {"Tense": "ordinal", "PoS": "nominal", "Word position": "nominal"}
    with pytest.raises(DataError, match="no feature Tens"):
        read_stimuli(replace(config, kinds={"Tens": "nominal"}))


def test_the_lexicon_keeps_its_promises():
    words = lexicon("large")
    for group in words:
        assert len(words[group]) == len(set(words[group])), group
    for group in ("female", "male", "neither", "adjectives", "places"):
        assert [word for word in words[group] if word[0] in "aeiou"] == [], "'a' goes with all of them"
    verbs = [entry.partition("/") for group in ("intransitive", "transitive") for entry in words[group]]
    assert [base for base, _, past in verbs if (past or with_ed(base)) == base] == []


def test_half_of_the_sentences_are_questions_and_in_the_past():
    drawn = controlled_sentences(2000, seed=1, size="large")
    kinds = Counter(sentence.kind for sentence in drawn)
    for kind, count in kinds.items():
        share = 1 / 10 if "question" in kind else 1 / 4
        assert abs(count / 2000 - share) < 4 * (share / 2000) ** 0.5
    assert len(kinds) == 7
    past = sum(any(word.tense == "past" for word in sentence.words) for sentence in drawn)
    assert abs(past - 1000) < 4 * 500**0.5


@pytest.mark.slow
def test_the_same_seed_draws_the_same_in_another_process():
    drawn = "controlled_stimuli(300, 7).sample(100, 7, 'PoS').fingerprint()"
    code = f"from thinkalike.data.stimuli import *\nprint({drawn})"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "PYTHONHASHSEED": "77"}
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=True)
    here = controlled_stimuli(300, 7).sample(100, 7, "PoS")
    assert run.stdout.strip() == here.fingerprint()
    assert controlled_stimuli(300, 8).sample(100, 7, "PoS").fingerprint() != here.fingerprint()
    assert controlled_stimuli(300, 7).sample(100, 8, "PoS").fingerprint() != here.fingerprint()


@pytest.fixture(scope="module")
def words() -> Stimuli:
    return controlled_stimuli(400, seed=3)


def made(features: dict | pd.DataFrame, **changes) -> Stimuli:
    """Stimuli a, b, c, … with these features, each a text of its own."""
    table = pd.DataFrame(features)
    letters = [chr(ord("a") + row) for row in range(len(table))]
    parts = {"texts": letters, "sentence": np.arange(len(table)), "span": [(0, 1)] * len(table), "words": letters}
    return Stimuli(**{**parts, "features": table, "source": "made", **changes})


def same(a: Stimuli, b: Stimuli) -> bool:
    return a.fingerprint() == b.fingerprint()


def test_a_span_cuts_its_word_out_of_its_sentence(words):
    cut = [words.texts[number][slice(*span)] for number, span in zip(words.sentence, words.span, strict=True)]
    assert cut == words.words == [word for text in words.texts for word in text.split()]
    assert [len(word) for word in words.words] == words.features["Word length"].to_list()
    positions = [place for text in words.texts for place in range(len(text.split()))]
    assert words.features["Word position"].to_list() == positions
    assert len(set(words.ids)) == len(words)


@pytest.mark.parametrize("rows", [[5, 3, 40], "Verb"], ids=["numbers", "mask"])
def test_taking_stimuli_takes_all_that_is_theirs(words, rows):
    rows = words.features["PoS"] == rows if isinstance(rows, str) else rows
    part, numbers = words.take(rows), np.arange(len(words))[rows]
    assert part.words == [words.words[row] for row in numbers]
    assert part.ids == [words.ids[row] for row in numbers]
    assert [part.texts[number] for number in part.sentence] == [words.texts[words.sentence[row]] for row in numbers]
    assert len(part.texts) == len(set(part.sentence))
    assert part.kinds == words.kinds
    torch.testing.assert_close(part.codes().table, words.codes().table[numbers], equal_nan=True, rtol=0, atol=0)
    assert part.codes().levels == words.codes().levels, "also where a level is gone"


def test_codes_and_levels_give_the_features_back(words):
    table, levels = words.codes()
    assert table.dtype == torch.float64
    assert table.isnan().any(), "control"
    for column, name in enumerate(words.names):
        values = table[:, column].tolist()
        if name in levels:
            values = [value if np.isnan(value) else levels[name][int(value)] for value in values]
        pd.testing.assert_series_equal(
            pd.Series(values, dtype=object), words.features[name].astype(object), check_names=False
        )
    assert levels["Person"] == ["1", "2", "3"]


@pytest.mark.parametrize("balance", ["PoS", ("Question", "Word position")])
def test_a_balanced_sample_has_equal_parts(words, balance):
    names = [balance] if isinstance(balance, str) else list(balance)
    cells = Counter(words.features[names].astype(object).fillna("NaN").itertuples(index=False, name=None))
    n = len(cells) * min(cells.values()) - 1
    drawn = words.sample(n, seed=1, balance=balance)
    found = Counter(drawn.features[names].astype(object).fillna("NaN").itertuples(index=False, name=None))
    assert len(drawn) == n
    assert set(found) == set(cells)
    assert max(found.values()) - min(found.values()) == 1
    assert len(set(drawn.ids)) == n
    order = [words.ids.index(name) for name in drawn.ids]
    assert order == sorted(order)
    plain = words.sample(n, seed=1)
    alone = Counter(plain.features[names].astype(object).fillna("NaN").itertuples(index=False, name=None))
    assert max(alone.values()) - min(alone.values()) > 5, "control: it is not balanced by itself"
    assert same(drawn, words.sample(n, seed=1, balance=balance))
    assert not same(drawn, words.sample(n, seed=2, balance=balance))


def test_the_most_that_can_be_balanced_is_what_the_error_says():
    stimuli = made({"f": ["x"] * 5 + ["y"] * 2 + [None] * 4})
    for n in (9, 11):
        with pytest.raises(DataError, match="between 1 and 8"):
            stimuli.sample(n, balance="f")
    for seed in range(9):
        drawn = stimuli.sample(8, seed, "f").features["f"].astype(object).fillna("none")
        assert Counter(drawn) == {"x": 3, "y": 2, "none": 3}


def explicit(stimuli: Stimuli) -> np.ndarray:
    """The correlation with every pair written out; NaN equals NaN."""
    values = stimuli.features.astype(object).fillna("NaN").to_numpy()
    i, j = np.triu_indices(len(values), 1)
    return np.corrcoef((values[i] != values[j]).T.astype(float))


def test_the_correlation_is_that_of_all_pairs(words):
    part = words.sample(200, balance="PoS")
    found = part.correlation().table
    np.testing.assert_allclose(found.to_numpy(), explicit(part), rtol=0, atol=1e-12)
    assert list(found) == list(found.index) == COLUMNS
    assert 0.2 < found.loc["PoS", "Tense"] < 0.9, "control: it is not a matrix of 0 and 1"
    twice = made({"f": list("xyxyzz"), "g": [1, 2, None, 1, 1, 2], "copy": list("qaqamm")})
    assert twice.correlation().strongest(3)[0] == ("f", "copy", pytest.approx(1))


def test_kinds_follow_from_types_unless_they_are_declared():
    table = pd.DataFrame(
        {
            "text": ["b", None, "a"],
            "truth": [True, False, True],
            "truth or nothing": [True, None, False],
            "whole": [1, 2, 10],
            "whole or nothing": pd.array([3, None, 4], dtype="Int64"),
            "ordered": pd.Categorical(["low", "high", None], ["low", "high"], ordered=True),
            "person": [1.0, None, 10.0],
            "person2": np.array([1, 10, 2], dtype=np.float32),
            "rank": [10, -2, -1.5],
            "size": ["s", "l", "m"],
            "category": pd.Categorical(["s", "l", "m"]),
            "unordered": pd.Categorical(["s", "l", "m"], ["s", "m", "l"], ordered=True),
        }
    )
    kinds = {"person": "nominal", "person2": "nominal", "rank": "ordinal", "size": ["s", "m", "l", "xl"]}
    kinds |= {"category": ["s", "m", "l"], "unordered": "nominal"}
    stimuli = made(table, kinds=kinds)
    nominal = ("text", "truth", "truth or nothing", "person", "person2", "unordered")
    ordinal = ("ordered", "rank", "size", "category")
    declared = dict.fromkeys(table, "numeric") | dict.fromkeys(nominal, "nominal") | dict.fromkeys(ordinal, "ordinal")
    assert stimuli.kinds == declared
    codes, levels = stimuli.codes()
    assert levels == {
        "text": ["a", "b"],
        "truth": ["False", "True"],
        "truth or nothing": ["False", "True"],
        "ordered": ["low", "high"],
        "person": ["1", "10"],
        "person2": ["1", "2", "10"],
        "rank": ["-2", "-1.5", "10"],
        "size": ["s", "m", "l", "xl"],
        "category": ["s", "m", "l"],
        "unordered": ["l", "m", "s"],
    }
    nan = float("nan")
    expected = [[1, nan, 0], [1, 0, 1], [1, nan, 0], [1, 2, 10], [3, nan, 4], [0, 1, nan], [0, nan, 1]]
    expected += [[0, 2, 1], [2, 0, 1], [0, 2, 1], [0, 2, 1], [2, 0, 1]]
    torch.testing.assert_close(codes.T, torch.tensor(expected, dtype=torch.float64), equal_nan=True)


@pytest.mark.parametrize(
    "changes",
    [
        {"texts": ["ax", "b", "c"]},
        {"sentence": np.array([0, 1, 1])},
        {"texts": ["aa", "b", "c"], "span": [(1, 2), (0, 1), (0, 1)]},
        {"features": pd.DataFrame({"f": ["x", "y", None], "g": [1, 2, 4]})},
        {"features": pd.DataFrame({"f": ["x", "y", "y"], "g": [1, 2, 3]})},
        {"kinds": {"g": "nominal"}},
    ],
)
def test_the_fingerprint_says_whether_stimuli_are_the_same(changes):
    table = pd.DataFrame({"f": ["x", "y", None], "g": [1, 2, 3]})
    assert same(made(table), made(table))
    assert not same(made(table), made(**{"features": table, **changes}))


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"words": ["a", "b"]}, "row counts differ"),
        ({"features": pd.DataFrame(index=range(3))}, "3 stimuli and no feature"),
        ({"ids": ["p", "q", "p"]}, "id p"),
        ({"span": [(0, 1), (0, 2), (0, 1)]}, "row 2: the span 0-2"),
        ({"span": [(0, 1), (0, 1), (1, 1)]}, "row 3: the span 1-1"),
        ({"features": pd.DataFrame([[1, 2]] * 3, columns=["f", "f"])}, "feature f"),
        ({"kinds": {"ff": "nominal"}}, "no feature ff"),
        ({"kinds": {"f": "nomnal"}}, "kinds.f=nomnal"),
        ({"kinds": {"f": "ordinal"}}, "kinds.f="),
        ({"kinds": {"f": ["x", "z"]}}, "row 2: f=y"),
        ({"kinds": {"f": "numeric"}}, "row 1: f=x"),
        ({"features": pd.DataFrame({"g": [1, 2, float("-inf")]})}, "row 3: g=-inf"),
    ],
)
def test_stimuli_that_do_not_fit_together_are_refused(changes, message):
    table = pd.DataFrame({"f": ["x", "y", None], "g": [1, 2, 3]})
    made(table)
    with pytest.raises(DataError, match=f"made.*{message}"):
        made(**{"features": table, **changes})


def write_table(path: Path, frame: pd.DataFrame) -> Path:
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if path.suffix == ".tsv" else ",")
    return path


def as_table(stimuli: Stimuli) -> pd.DataFrame:
    ends = pd.DataFrame(stimuli.span, columns=["start", "stop"])
    texts = [stimuli.texts[number] for number in stimuli.sentence]
    return pd.concat([pd.DataFrame({"id": stimuli.ids, "text": texts}), ends, stimuli.features], axis=1)


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.parquet"])
def test_stimuli_written_as_a_table_are_read_as_they_were(name, words, tmp_path):
    path = write_table(tmp_path / name, as_table(words))
    back = read_table(path, kinds={"Person": "nominal"})
    assert same(back, words)
    assert (back.words, back.ids, back.source) == (words.words, words.ids, str(path))
    assert not same(read_table(path, features=COLUMNS[1:], kinds={"Person": "nominal"}), words), "control"


def test_two_names_that_are_one_number_stay_two(tmp_path):
    rows = {"id": list("abcd"), "version": ["1.10", "1.1", "1.2", "1.1"]}
    path = write_table(tmp_path / "x.csv", pd.DataFrame(rows))
    columns = {"text": None}
    named = read_table(path, kinds={"version": "nominal"}, columns=columns)
    assert list(named.features["version"]) == rows["version"]
    assert list(read_table(path, columns=columns).features["version"]) == [1.1, 1.1, 1.2, 1.1]


def test_cells_of_parquet_are_numbers_or_names(tmp_path):
    frame = pd.DataFrame({"id": list("abcd"), "price": [Decimal("1.10"), Decimal("1.2"), None, Decimal("1.1")]})
    found = read_table(write_table(tmp_path / "x.parquet", frame), columns={"text": None}).features["price"]
    assert found.dropna().tolist() == [1.1, 1.2, 1.1]
    path = write_table(tmp_path / "y.parquet", frame.assign(price=[[1], [2], [1, 2], [1]]))
    with pytest.raises(DataError, match="price holds a ndarray in a cell"):
        read_table(path, columns={"text": None})


def test_a_word_is_found_in_its_text(tmp_path):
    """As a word before as a part of one: `he` is not looked for in `she`."""
    rows = [("she said he ran", "he"), ("a (null) value", "null"), ("NA is None", "NA"), ("天気がいい", "天気")]
    path = write_table(tmp_path / "x.csv", pd.DataFrame(rows, columns=["text", "word"]).assign(f=list("xyxy")))
    stimuli = read_table(path)
    assert stimuli.words == [word for _, word in rows]
    assert stimuli.span == [(9, 11), (3, 7), (0, 2), (0, 2)]


@pytest.mark.parametrize("mark", [".", ","])
def test_decimal_commas_are_read_as_numbers(mark, tmp_path, caplog):
    values = [f"{number / 7:.2f}".replace(".", mark) for number in range(9)] + ["4"]
    frame = pd.DataFrame({"text": [f"t{number}" for number in range(10)], "f": values})
    path = write_table(tmp_path / "x.tsv", frame)
    assert read_table(path).features["f"].tolist() == pytest.approx([round(n / 7, 2) for n in range(9)] + [4])
    assert ("decimal commas" in caplog.text) == (mark == ",")


@pytest.mark.parametrize(
    ("values", "said"),
    [("1,234 12,345", "of thousands or decimals"), (f"{10**17 + 1} {10**17 + 2}", "more than 16 digits")],
)
def test_numbers_that_have_two_readings_or_none_are_refused(values, said, tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "f": values.split()})
    with pytest.raises(DataError, match=said):
        read_table(write_table(tmp_path / "x.tsv", frame))


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize("gap", [None, 7])
def test_long_whole_numbers_stay_whole_beside_a_missing_cell(gap, tmp_path):
    """As floats, two ids are one level."""
    import pyarrow
    import pyarrow.parquet

    ids = [2**53, 2**53 + 1, 5, gap]
    table = pyarrow.table({"text": ["a", "b", "c", "d"], "number": pyarrow.array(ids)})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    with pytest.raises(DataError, match=r"more than 16 digits; declare stimuli\.kinds\.number=nominal"):
        read_table(tmp_path / "x.parquet")
    levels = read_table(tmp_path / "x.parquet", kinds={"number": "nominal"}).features["number"]
    assert levels.dropna().tolist() == [str(number) for number in ids if number is not None]


@pytest.mark.parametrize(
    ("cells", "kind", "levels"),
    [
        (["1,234", "2,345"], "nominal", ["1,234", "2,345"]),
        (["1,5", "2,5"], ["1,5", "2,5"], ["1,5", "2,5"]),
        (["01", "1"], ["01", "1"], ["01", "1"]),
        (["1,5", "2,5"], "numeric", [1.5, 2.5]),
    ],
)
def test_levels_that_are_declared_keep_their_names(cells, kind, levels, tmp_path):
    frame = pd.DataFrame({"text": ["a", "b"], "f": cells})
    table = read_table(write_table(tmp_path / "x.tsv", frame), kinds={"f": kind})
    assert table.features["f"].tolist() == levels


def test_levels_may_have_any_number_of_digits(tmp_path):
    """Python reads no integer of more than 4300 digits."""
    levels = [f"a{'9' * 5000}", "a10", "a2"]
    path = write_table(tmp_path / "x.csv", pd.DataFrame({"text": ["a", "b", "c"], "f": levels}))
    assert read_table(path).features["f"].cat.categories.tolist() == levels[::-1]


def test_decimal_numbers_that_floats_cannot_hold_are_names_or_refused(tmp_path):
    import pyarrow
    import pyarrow.parquet

    numbers = pyarrow.array([10**30, 10**30 + 1, 3], pyarrow.decimal128(38, 0))
    pyarrow.parquet.write_table(pyarrow.table({"text": ["a", "b", "c"], "f": numbers}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="more than 16 digits"):
        read_table(tmp_path / "x.parquet")
    named = read_table(tmp_path / "x.parquet", kinds={"f": "nominal"})
    assert named.features["f"].nunique() == 3


def test_a_role_that_needs_texts_is_refused_without_them(tmp_path):
    path = write_table(tmp_path / "x.csv", pd.DataFrame({"id": ["a", "b"], "f": [1, 2]}))
    with pytest.raises(DataError, match=r"columns\.word=f has no effect without a column of texts"):
        read_table(path, columns={"text": None, "word": "f"})


def test_the_text_beside_lists_of_its_words_is_no_feature(tmp_path):
    frame = pd.DataFrame(
        {"text": ["the dog", "a cat"], "word": [["the", "dog"], ["a", "cat"]], "pos": [["D", "N"]] * 2}
    )
    frame.to_parquet(tmp_path / "x.parquet")
    table = read_table(tmp_path / "x.parquet")
    assert list(table.features) == ["pos"]
    assert table.texts == ["the dog", "a cat"]


def test_columns_that_name_each_row_are_no_features(tmp_path, caplog):
    count = 12
    columns = {"text": [f"t{n}" for n in range(count)], "date": [f"{n}-1-2025" for n in range(count)], "g": [0, 1] * 6}
    path = write_table(tmp_path / "x.csv", pd.DataFrame(columns | {"h": ["1.5", "2", "N/A"] * 4}))
    assert list(read_table(path).features) == ["g", "h"]
    assert "date has a level of its own" in caplog.text
    assert "h has cells such as 'N/A' among its numbers, and is read as names" in caplog.text
    with pytest.raises(DataError, match="date has a level of its own"):
        read_table(path, features=["date", "g"])
    few = pd.DataFrame(columns).assign(date=["1-1-2025", "2-1-2025"] * 6)
    assert list(read_table(write_table(tmp_path / "y.csv", few)).features) == ["date", "g"], "control"


def test_words_in_rows_of_their_own_become_sentences(tmp_path):
    words, tags = ["Nur", "die", "Ruhe", "Ach", "die", "Zeit"], list("ADNIDN")
    long = pd.DataFrame({"Satz": ["s1", "", "", "s2", "", ""], "word": words, "tag": tags})
    lists = pd.DataFrame({"id": ["0", "1"], "tokens": [words[:3], words[3:]], "tag": [tags[:3], tags[3:]]})
    lists.to_parquet(tmp_path / "x.parquet")
    write_table(tmp_path / "x.csv", long)
    for found in (read_table(tmp_path / "x.csv", columns={"sentence": "Satz"}), read_table(tmp_path / "x.parquet")):
        assert found.texts == ["Nur die Ruhe", "Ach die Zeit"]
        assert [found.texts[n][slice(*span)] for n, span in zip(found.sentence, found.span, strict=True)] == words
        assert found.features["tag"].tolist() == tags
    write_table(tmp_path / "y.csv", long.assign(Satz=["s1", "", "s2", "s2", "s1", "s1"]))
    with pytest.raises(DataError, match="row 5: the sentence s1 has ended in a row above it"):
        read_table(tmp_path / "y.csv", columns={"sentence": "Satz"})
    lists.assign(tag=[tags[:3], tags[4:]]).to_parquet(tmp_path / "z.parquet")
    with pytest.raises(DataError, match="lists tokens, tag of a row are not of one length"):
        read_table(tmp_path / "z.parquet")


def test_without_words_stimuli_are_whole_texts(tmp_path):
    frame = pd.DataFrame({"saying": ["b, c", "a", "b, c"], "f": [1, 2, 3], "g": 0})
    path = write_table(tmp_path / "x.csv", frame)
    stimuli = read_table(path, columns={"text": "saying"}, features=["f"])
    assert stimuli.words == ["b, c", "a", "b, c"]
    assert (stimuli.texts, stimuli.sentence.tolist(), stimuli.ids) == (["b, c", "a"], [0, 1, 0], ["1", "2", "3"])


def test_cells_say_numbers_levels_or_nothing(tmp_path):
    path = tmp_path / "x.csv"
    rows = ["\ufefftext,f,g,h,i,,Unnamed: 0", "", "a,1,x,True,1,0,0", "b,,NaN,False,2,1,1", "c,1e3,None,NaN,three,2,2"]
    path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    stimuli = read_table(path)
    assert stimuli.kinds == {"f": "numeric", "g": "nominal", "h": "nominal", "i": "nominal"}
    found = {name: [printed(value) for value in column] for name, column in stimuli.features.items()}
    assert (found["f"], found["g"]) == (["1", "NaN", "1000"], ["x", "NaN", "None"])
    assert (found["h"], found["i"]) == (["True", "False", "NaN"], ["1", "2", "three"])


@pytest.mark.usefixtures("command_line")
@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, "empty"),
        ("text,f\n", {}, "empty"),
        ("txt,f\na,1\nb,2\n", {}, "column text"),
        ("text,f\na,1\nb,2\n", {"columns": {"word": "wrd"}}, "column wrd"),
        ("text,f\na,1\nb,2\n", {"features": ["text"]}, "feature text"),
        ("id,f\na,1\n,2\n", {"columns": {"text": None}}, "row 2 has no id"),
        ("text,f\na,1\nb,1\n", {}, "f has one level"),
        ("text,f,f\na,1,2\nb,2,3\n", {}, "column f"),
        ("text,f\na,1\nb\n", {}, "row 2 has 1 cells"),
        ("text,word,f\na b,c,1\n", {}, "row 1: the word 'c'"),
        ("text,word,f\na b,b,1\na a,a,2\n", {}, "row 2: the word 'a'"),
        ("text,word,f\na,a,1\ncafe\u0301,cafe,2\n", {}, "row 2: the word 'cafe' must occur once"),
        ("text,f\na,1\n  ,2\n", {}, "row 2: its text is blank"),
        ('text,f\na,1\n"\t\n",2\n', {}, "row 2: its text is blank"),
        ("text,f\na,1\n\u3000\u00a0,2\n", {}, "row 2: its text is blank"),
        ("text,word,f\n \u2003, ,1\na,a,2\n", {}, "row 1: the word ' '|row 1: its text is blank"),
        ("text,start,f\na,0,1\n", {}, "start and stop"),
        ("text,word,start,stop,f\nab,a,1,2,1\n", {}, "row 1: start=1, stop=2"),
        (f"text,start,stop,f\nab,0,{'9' * 5000},1\n", {}, "row 1: start=0, stop=999"),
        ("text,f\na,1\nb,2\n", {"kinds": "nominal"}, "kinds='nominal' must give kinds by feature"),
        ("text,f\na,1\nb,2\n", {"kinds": ["nominal"]}, "kinds=.'nominal'. must give kinds by feature"),
        ("text,f\na,1\nb,2\n", {"kinds": {"f": 3}}, "kinds.f=3 must be one of nominal"),
        ("text,f\na,1\nb,2\n", {"kinds": {"f": None}}, "kinds.f=None must be one of nominal"),
        ("text,f\na,1\nb,2\n", {"kinds": {"f": []}}, r"kinds.f=\[\] must be one of nominal"),
        ("text,f\na,1\nb,2\n", {"kinds": {"f": ["1", "2", "1"]}}, "kinds.f=.* different levels in order"),
        ("text,f\na,1\nb,2\n", {"columns": "text"}, "columns='text' must give the column of each role"),
        ("text,f\na,1\nb,2\n", {"features": "f"}, "features='f' must be a list of names"),
        ("t\0e\0x\0t\0,\0f\0\n\0a\0,\x001\0\n\0", {}, "as UTF-16LE read as UTF-8; convert it: iconv -f UTF-16LE"),
    ],
)
def test_a_table_that_is_wrong_is_refused(text, options, message, tmp_path):
    path = tmp_path / "x.csv"
    path.write_text(text)
    with pytest.raises(DataError, match=message):
        inspect.unwrap(read_table)(path, **options)


RAM, RAMA = "राम", "रामा"
MOTHER, CHILD = "\N{WOMAN}", "\N{GIRL}"
JOINED = "\N{ZERO WIDTH JOINER}".join([MOTHER, MOTHER, CHILD])
HEART = "\N{HEAVY BLACK HEART}"
THUMB = "\N{THUMBS UP SIGN}"
IN_CHARACTERS = {  # text, word, and the start of the word in the text; None: it does not stand there
    "a vowel sign makes another word": (f"{RAMA} और {RAM}", RAM, 8),
    "a vowel sign alone": (f"{RAMA} गया", RAM, None),
    "an accent of its own": ("ca\u0301 ca", "ca", 4),
    "a tilde of its own": ("nin\u0303o nino", "nino", 6),
    "only with an accent": ("cafe\u0301 x", "cafe", None),
    "an accent before": ("a\u0301bc bc", "bc", 5),
    "joined emoji": (f"{JOINED} {MOTHER}", MOTHER, 6),
    "only in joined emoji": (JOINED, CHILD, None),
    "a colour of skin": (f"{THUMB}\N{EMOJI MODIFIER FITZPATRICK TYPE-4} {THUMB}", THUMB, 3),
    "a variation selector": (f"{HEART}\N{VARIATION SELECTOR-16} {HEART}", HEART, 3),
    "a soft hyphen": ("co\u00adop co", "co", 6),
    "a zero width non-joiner": ("می\u200cخواهم می", "می", 9),
    "a word joiner": ("co\u2060op co", "co", 6),
    "marks of direction around it": ("\u200fשלום\u200f", "שלום", 1),
    "points of Hebrew": ("שָׁלוֹם שלום", "שלום", 8),
    "flags": ("🇩🇪🇫🇷 🇪🇫", "🇪🇫", 5),
    "an exponent": ("x² x", "x", 3),
    "a part that nothing surrounds": ("黑猫睡", "猫", 1),
    "a part that overlaps itself": ("aaa", "aa", None),
    "a zero width space": ("แมว\u200bกิน", "แมว", 0),
    "an apostrophe": ("it's I", "it", 0),
    "only inside a word": ("The dog runs", "he", None),
    "only the beginning of a word": ("the dogma", "dog", None),
    "only a part of a name": ("a dog_house", "dog", None),
    "only inside a word of another script": ("красота", "рас", None),
    "a part with a hyphen": ("a hot-dog", "-dog", 5),
    "a script with spaces in one without": ("用python写", "python", 1),
    "a script without spaces beside letters": ("GPU卡 x", "卡", 3),
}


@pytest.mark.parametrize("name", IN_CHARACTERS)
def test_a_word_stands_between_characters_as_readers_count_them(name):
    text, word, start = IN_CHARACTERS[name]
    frame = pd.DataFrame({"text": [text, "b"], "word": [word, "b"], "f": ["x", "y"]})
    if start is None:
        with pytest.raises(DataError, match="must occur once"):
            read_table("t", frame=frame)
        return
    assert read_table("t", frame=frame).span[0] == (start, start + len(word))


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_another_separator_than_commas_is_named(separator, tmp_path):
    path = tmp_path / "words.csv"
    path.write_text("text,word,f\nthe dog,dog,x\na cat,cat,y\n".replace(",", separator))
    with pytest.raises(DataError, match=re.escape(f"cells are separated by {separator!r}, not by commas")):
        read_table(path)


@pytest.mark.parametrize("word", ["dog ", " dog", "dog\t"])
def test_white_space_around_a_word_is_not_of_it(word):
    frame = pd.DataFrame({"text": ["the dog runs", "b"], "word": [word, "b"], "f": ["x", "y"]})
    assert read_table("t", frame=frame).span[0] == (4, 7)


NESTED = {
    "text of bytes": ({"text": [b"the dog", b"a cat"]}, "row 1: text holds bytes"),
    "ids of bytes": ({"id": [b"1", b"2"]}, "row 1: id holds bytes"),
    "a feature of bytes": ({"g": [b"a", b"b"]}, "g holds bytes"),
    "bytes in a later row": ({"g": [None, b"b"]}, "g holds bytes"),
    "a list as a text": ({"text": [["the", "dog"], ["a", "cat"]]}, "row 1: text holds a ndarray"),
    "lists of lists as words": ({"word": [[["the"]], [["a"]]], "text": None, "f": [["x"], ["y"]]}, "row 1: word holds"),
}


@pytest.mark.parametrize("what", NESTED)
def test_cells_that_are_no_text_are_not_written_as_text(what, tmp_path):
    columns, message = NESTED[what]
    cells = {"text": ["the dog", "a cat"], "f": ["x", "y"], **columns}
    path = tmp_path / "x.parquet"
    pd.DataFrame({name: values for name, values in cells.items() if values is not None}).to_parquet(path)
    with pytest.raises(DataError, match=message):
        read_table(path)


def test_an_index_with_a_name_is_a_column(tmp_path):
    frame = pd.DataFrame({"text": ["the dog", "a cat"], "f": ["x", "y"], "g": ["z", "w"]})
    path = tmp_path / "x.parquet"
    for index in ("f", ["f", "g"], "text"):
        frame.set_index(index).to_parquet(path)
        found = read_table(path)
        assert sorted(found.names) == ["f", "g"]
        assert found.texts == ["the dog", "a cat"]
    frame.set_index(pd.Index([7, 3])).to_parquet(path)
    assert read_table(path).names == ["f", "g"], "an index without a name numbers the rows"
    for values, differs in ((["x", "y"], False), (["y", "x"], True)):
        both = frame.set_index(pd.Index(values, name="f"))
        if not differs:
            assert list(with_named_index(both, "table")) == ["text", "f", "g"]
            continue
        with pytest.raises(DataError, match=r"table: the index and a column are both named f, and differ"):
            with_named_index(both, "table")


def test_a_column_that_lacks_every_value_has_one_level():
    frame = pd.DataFrame({"text": ["the dog", "a cat"], "f": ["x", "y"], "day": pd.NaT})
    with pytest.raises(DataError, match="day has one level only"):
        thinkalike.mlem(np.eye(2), stimuli=frame, folds=2)


def test_a_cell_may_be_of_any_length(tmp_path):
    long = "word " * 40_000
    path = tmp_path / "x.csv"
    path.write_text(f"text,f\n{long},x\na cat,y\n")
    limit = csv.field_size_limit()
    assert [len(text) for text in read_table(path).texts] == [len(long), 5]
    assert csv.field_size_limit() == limit, "nothing global is left changed"


def test_a_path_that_no_file_has_is_refused():
    with pytest.raises(DataError, match="cannot read aaa"):
        read_table("a" * 5000 + ".csv")


@pytest.mark.parametrize("read", [read_table, read_conllu, lambda path: read_recording(path, made({"f": [1, 2]}))])
def test_a_file_that_cannot_be_read_is_named(read, tmp_path):
    with pytest.raises(DataError, match=r"x\.doc: the ending"):
        read(tmp_path / "x.doc")
    for suffix in ("csv", "tsv", "parquet", "conllu", "npz", "safetensors"):
        path = tmp_path / f"x.{suffix}"
        for harm in (path.touch, lambda path=path: path.write_bytes(b"\xff\xfe garbage"), path.unlink):
            harm()
            with pytest.raises(DataError, match=rf"x\.{suffix}"):
                read(path)


def conllu(*lines: str) -> str:
    """Of ID|FORM|UPOS|FEATS|MISC, with ; where the file has a bar."""
    made = []
    for line in lines:
        if "|" in line:
            number, form, upos, feats, misc = (cell.replace(";", "|") for cell in line.split("|"))
            made.append("\t".join([number, form, "_", upos, "_", feats, "_", "_", "_", misc]))
        else:
            made.append(line)
    return "\n".join(made) + "\n"


TREES = conllu(
    "# newdoc id = d1",
    "# sent_id = s1",
    "# text = a comment that is not read",
    "1|She|PRON|Gender=Fem;Number=Sing|_",
    "2-3|don't|_|_|_",
    "2|do|AUX|Tense=Pres|_",
    "3|n't|PART|_|_",
    "4|eat|VERB|_|_",
    "4.1|eat|VERB|_|_",
    "5-6|du|_|_|SpaceAfter=No",
    "5|de|ADP|_|SpaceAfter=No",
    "6|le|DET|Number=Sing|_",
    "7|.|PUNCT|_|Comment=x;SpaceAfter=No",
    "",
    "",
    "1|10 000|NUM|_|SpacesAfter=x",
    "2|null|_|Number=Plur|_",
)


def test_a_conllu_file_becomes_text_spans_and_features(tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(TREES)
    stimuli = read_conllu(path)
    assert stimuli.texts == ["She don't eat du.", "10 000 null"]
    assert stimuli.words == ["She", "do", "n't", "eat", "de", "le", ".", "10 000", "null"]
    assert stimuli.span == [(0, 3), (4, 6), (6, 9), (10, 13), (14, 16), (14, 16), (16, 17), (0, 6), (7, 11)]
    assert stimuli.sentence.tolist() == [0] * 7 + [1] * 2
    assert stimuli.ids == [*(f"s1:{place}" for place in range(1, 8)), "2:1", "2:2"]
    nan = "NaN"
    assert {name: [printed(value) for value in column] for name, column in stimuli.features.items()} == {
        "UPOS": ["PRON", "AUX", "PART", "VERB", "ADP", "DET", "PUNCT", "NUM", nan],
        "Gender": ["Fem", *[nan] * 8],
        "Number": ["Sing", *[nan] * 4, "Sing", nan, nan, "Plur"],
        "Tense": [nan, "Pres", *[nan] * 7],
        "Word length": ["3", "2", "3", "3", "2", "2", "1", "6", "4"],
        "Word position": ["0", "1", "2", "3", "4", "5", "6", "0", "1"],
    }


@pytest.mark.parametrize("suffix", ["csv", "conllu"])
def test_too_many_features_are_refused_and_may_be_chosen_from(suffix, tmp_path):
    path = tmp_path / f"x.{suffix}"
    names = [f"F{number}" for number in range(2_000)]
    if suffix == "conllu":
        lines = [f"1|a|X|{name}=1|_\n\n1|b|Y|{name}=2|_\n" for name in names]
        path.write_text("\n".join(conllu(*text.split("\n")) for text in lines))
        read = read_conllu
    else:
        rows = ["x" * (number + 1) + f",{number % 3}" * len(names) for number in range(4)]
        path.write_text("\n".join(["text," + ",".join(names), *rows]))
        read = read_table
    with pytest.raises(DataError, match="features, and 1,000 can be compared"):
        read(path)
    assert read(path, features=["F7"]).names == ["F7"]


def test_odd_conllu_files_are_read(tmp_path):
    """Comments anywhere, empty nodes first, lines of white space, no last newline, a sentence without a name."""
    path, lines = tmp_path / "x.conllu", TREES.splitlines()
    path.write_text(TREES)
    expected = read_conllu(path)
    empty = conllu("0.1|nothing|X|A=b;C=d|_", "0.2|more|_|_|_").splitlines()
    odd = ["", " \t ", *lines[:3], *empty, lines[3], "# in between = 1", *lines[4:], "", "", "# the end"]
    for end, mark in (("\n", b""), ("\r\n", b"\xef\xbb\xbf"), ("\r", b"")):
        path.write_bytes(mark + end.join(odd).encode())
        assert same(read_conllu(path), expected)
    path.write_text(
        conllu("# sent_id =", "# sent_id", "#", "1|#|X|_|SpaceAfter=No;Gloss=a=b", "2|=|Y|_|_", "3|_|_|_|_")
    )
    found = read_conllu(path, features=["UPOS"])
    assert (found.texts, found.words, found.ids) == (["#= _"], ["#", "=", "_"], ["1:1", "1:2", "1:3"])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["# only a comment"], "has no line of a word"),
        (["1|a|X|_|_", "2|b|X|_|_"], "UPOS has one level"),
        (["1|a|X|_|_", "2 b"], "line 2"),
        (["1|a|X|_|_", "3|b|Y|_|_"], "line 2: the ID is 3"),
        (["1-|a|X|_|_"], "line 1: the ID is 1-"),
        (["1-1|a|X|_|_"], "line 1: the ID is 1-1"),
        (["1-3|a|X|_|_", "1|a|X|_|_", "2-3|a|X|_|_"], "line 3: the ID is 2-3"),
        (["1-3|a|X|_|_", "1|a|X|_|_", ""], "line 3: .* multiword token 1-3"),
        (["1||X|_|_"], "line 1: the word with the ID 1 has no form"),
        (["9" * 5000 + "|a|X|_|_"], "line 1: the ID is 9{40} of 'a' where 1 is due"),
        (["1|a|X|Number=|_"], "line 1: FEATS 'Number='"),
        (["1|a|X|A=b;C=d;A=e|_"], "line 1: FEATS"),
        (["1|a|X|A=b;UPOS=d|_"], "line 1: FEATS 'A=b|UPOS=d' name UPOS".replace("|", r"\|")),
        (["1|a|X|_|_", "2|a|X|Word length=7|_"], "line 2: FEATS .* name Word length"),
    ],
)
def test_a_malformed_conllu_file_is_refused(lines, message, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text(conllu(*lines))
    with pytest.raises(DataError, match=f"x.conllu.*{message}"):
        read_conllu(path)


@pytest.mark.parametrize("columns", [1, 9, 11])
def test_a_conllu_line_of_other_columns_says_how_many_there_are(columns, tmp_path):
    path = tmp_path / "x.conllu"
    path.write_text("\t".join(["1", *"_" * (columns - 1)]))
    with pytest.raises(DataError, match=rf"x.conllu line 1: it has {columns} columns?, and CoNLL-U has 10"):
        read_conllu(path)


SPACED = {
    "x.csv": "text, word, num,freq \nthe cat, cat, 1,5\nthe dogs, dogs, 2,9\n",
    "quoted.csv": 'text, "word", num, freq\n"the cat", "cat", 1, 5\nthe dogs, dogs, 2, 9\n',
    "x.tsv": "text\t word\tnum \tfreq\nthe cat\tcat\t1\t5\nthe dogs\tdogs\t2\t9\n",
}


@pytest.mark.parametrize("name", [*SPACED, "x.parquet"])
def test_spaces_around_the_names_of_columns_are_no_part_of_them(name, tmp_path):
    path = tmp_path / name
    if name in SPACED:
        path.write_text(SPACED[name])
    else:
        rows = [("the cat", "cat", 1, 5), ("the dogs", "dogs", 2, 9)]
        pd.DataFrame(rows, columns=["text", " word", "num ", "freq"]).to_parquet(path)
    stimuli = read_table(path)
    assert stimuli.span == [(4, 7), (4, 8)]
    assert stimuli.features.to_dict("list") == {"num": [1, 2], "freq": [5, 9]}
    assert read_table(path, features=["num"]).names == ["num"]


def test_two_columns_that_differ_in_a_space_are_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("text,num, num\na,1,2\nb,2,1\n")
    with pytest.raises(DataError, match="num occurs more than once"):
        read_table(path)


@pytest.mark.parametrize("dtype", ["complex64", "complex128", object])
def test_complex_numbers_are_no_feature(dtype):
    values = pd.Series(np.array([1, 2 + 1j, 3])).astype(dtype)
    with pytest.raises(DataError, match="z has complex numbers"):
        Stimuli(["a b c"], np.zeros(3, int), [(0, 1), (2, 3), (4, 5)], ["a", "b", "c"], pd.DataFrame({"z": values}))


PICTURES = ["p1", "p2", "p3"]


def write_arrays(path: Path, arrays: dict[str, torch.Tensor], ids=PICTURES) -> Path:
    if path.suffix == ".npz":
        np.savez(
            path, **{name: array.numpy() for name, array in arrays.items()}, **({} if ids is None else {"ids": ids})
        )
    else:
        save_file(arrays, path, None if ids is None else {"ids": json.dumps(ids)})
    return path


@pytest.fixture
def pictures(tmp_path) -> Stimuli:
    """Things without a text."""
    frame = pd.DataFrame({"id": ["p1", "p2", "p3"], "category": ["face", "house", "face"], "word": [1, 2, 3]})
    return read_table(write_table(tmp_path / "pictures.csv", frame), columns={"text": None})


@pytest.mark.parametrize(("name", "dtype"), [("x.npz", torch.float32), ("x.safetensors", torch.float16)])
def test_one_array_and_one_for_each_layer_are_the_same(name, dtype, pictures, tmp_path):
    states = torch.randn(12, 3, 5).to(dtype)
    whole = read_recording(write_arrays(tmp_path / name, {"states": states}), pictures).layers
    each = {f"layer{number}": layer.clone() for number, layer in enumerate(states)}
    layers = read_recording(write_arrays(tmp_path / f"each_{name}", each), pictures).layers
    assert pictures.words == pictures.texts == pictures.ids == PICTURES
    assert pictures.names == ["category", "word"], "a word in no text is a feature"
    assert list(whole) == [str(number) for number in range(12)]
    assert list(layers) == [f"layer{number}" for number in range(12)], "layer2 comes before layer10"
    assert torch.equal(torch.cat(list(whole.values())), states)
    assert torch.equal(torch.cat(list(layers.values())), states)
    assert layers["layer0"].dtype == dtype


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({}, "has no layers"),
        ({"V1": torch.ones(4, 2)}, r"V1 is torch.float32 of shape \(4, 2\); .* the 3 ids"),
        ({"states": torch.ones(2, 4, 2)}, r"0 is torch.float32 of shape \(4, 2\)"),
        ({"V1": torch.ones(3, 0)}, r"V1 is torch.float32 of shape \(3, 0\)"),
        ({"V1": torch.ones(3, 2, dtype=torch.complex64)}, "V1 is a tensor that is complex"),
        ({"V1": torch.arange(6).view(3, 2) + 2**60}, "V1 holds whole numbers beyond 2.53"),
        ({"states": torch.ones(0, 3, 2)}, "has no layers"),
        ({"V1": torch.tensor([[1, 2], [3, float("nan")], [5, 6]])}, "V1 is nan in row 2, column 2; leave the row out"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(name, arrays, message, pictures, tmp_path):
    with pytest.raises(DataError, match=rf"{re.escape(name)}.*{message}"):
        read_recording(write_arrays(tmp_path / name, arrays), pictures)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_layers_of_eight_bits_are_refused(dtype, pictures, tmp_path):
    with pytest.raises(DataError, match=r"x.safetensors: V1 is a tensor that is quantised"):
        read_recording(write_arrays(tmp_path / "x.safetensors", {"V1": torch.ones(3, 2).to(dtype)}), pictures)


def test_an_archive_of_arrays_loses_none_of_them(pictures, tmp_path):
    """Asked for `a.npy`, NumPy gives the array `a`, and of two arrays of one name the last."""
    first, second = np.random.default_rng(0).normal(size=(2, 3, 2))
    np.savez(tmp_path / "both.npz", ids="order", **{"a": first, "a.npy": second})
    layers = read_recording(tmp_path / "both.npz", pictures).layers
    assert np.array_equal(layers["a"][0], first)
    assert np.array_equal(layers["a.npy"][0], second)
    for names in (("a", "a.npy"), ("a.npy", "a.npy")):
        path = tmp_path / "twice.npz"
        np.savez(path, ids="order")
        with zipfile.ZipFile(path, "a") as archive, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of names that occur twice
            for name, array in zip(names, (first, second), strict=True):
                with archive.open(name, "w") as file:
                    np.save(file, array)
        with pytest.raises(DataError, match="two arrays of the name 'a'"):
            read_recording(path, pictures)


def test_pickled_arrays_are_refused_without_advice_to_run_them(pictures, tmp_path):
    np.savez(tmp_path / "x.npz", ids="order", V1=np.array([{}, {}, {}], dtype=object))
    with pytest.raises(DataError, match="pickled objects, which are never run") as caught:
        read_recording(tmp_path / "x.npz", pictures)
    assert "allow_pickle" not in str(caught.value)


def test_ids_are_stated_once_and_in_text(pictures, tmp_path):
    arrays = {"V1": torch.ones(3, 2), "ids": torch.tensor([3, 2, 1])}
    with pytest.raises(DataError, match=r"x.safetensors has ids in an array and in its metadata"):
        read_recording(write_arrays(tmp_path / "x.safetensors", arrays), pictures)
    np.savez(tmp_path / "x.npz", ids=np.array([b"\xff"] * 3), V1=np.ones((3, 2)))
    with pytest.raises(DataError, match=r"x.npz: ids holds bytes that are no UTF-8"):
        read_recording(tmp_path / "x.npz", pictures)


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
def test_rows_find_their_stimuli_by_their_ids(name, pictures, tmp_path):
    states, counts = torch.randn(3, 5), torch.tensor([[1, 2], [3, 4], [5, 2**40]])  # layers may have other widths
    for ids in (["p1", "p2", "p3"], ["p3", "p1", "p2"], "order"):
        order = list(range(3)) if ids == "order" else list(map(PICTURES.index, ids))
        written = write_arrays(tmp_path / name, {"V1": states[order], "IT": counts[order]}, ids)
        layers = read_recording(written, pictures).layers
        assert list(layers) == ["IT", "V1"]
        assert torch.equal(layers["V1"][0], states)
        assert torch.equal(layers["IT"][0], counts.double()), "whole numbers become float64"
    with pytest.raises(DataError, match=r"V1 is torch.float32 of shape \(2, 5\)"):
        read_recording(write_arrays(tmp_path / name, {"V1": states[:2]}, "order"), pictures)


@pytest.mark.parametrize("name", ["x.npz", "x.safetensors"])
@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (None, "say which stimulus a row belongs to"),
        (["p1", "p2"], "lacks p3"),
        (["p1", "p4", "p3"], "lacks p2"),
        (["p1", "p2", "p3", "p4"], "p4"),
        (["p1", "p2", "p2"], "p2 more than once"),
        ([1.0, 2.0, 3.0], r"ids is float64 of shape \(3,\)"),
        ([["p1", "p2", "p3"]], r"ids is <U2 of shape \(1, 3\)"),
    ],
)
def test_ids_that_are_not_those_of_the_stimuli_are_refused(name, ids, message, pictures, tmp_path):
    with pytest.raises(DataError, match=rf"{re.escape(name)}[:,]? .*{message}"):
        read_recording(write_arrays(tmp_path / name, {"V1": torch.ones(3, 2)}, ids), pictures)


def test_the_examples_of_the_documentation_hold(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "guide" / "stimuli.md").read_text()
    shown, trees = (re.search(rf"```{language}\n(.*?)```", page, re.DOTALL)[1] for language in ("csv", "conllu"))
    (tmp_path / "trees.conllu").write_text(trees)
    monkeypatch.chdir(tmp_path)
    examples = doctest.DocTestParser().get_doctest(page, {}, "stimuli.md", None, 0)
    runner = doctest.DocTestRunner()
    runner.run(examples)
    assert (runner.failures, runner.tries) == (0, len(examples.examples))
    assert runner.tries > 25
    assert (tmp_path / "words.csv").read_text().startswith(shown)


def repeated(level_words: dict[str, list[str]], times: int = 12) -> Stimuli:
    """Stimuli that have each word of each level this often."""
    rows = [(level, word) for level, words in level_words.items() for word in words for _ in range(times)]
    levels, words = zip(*rows, strict=True)
    return made({"tense": levels}, words=list(words), texts=list(words), span=[(0, len(word)) for word in words])


CONFOUNDED = {
    "one word a level": {"past": ["was"], "present": ["is"]},
    "upper case": {"past": ["was", "Was"], "present": ["is", "IS"]},
    "two of three levels": {"past": ["was"] * 4, "present": ["is"] * 4, "future": ["will", "shall", "may", "can"]},
    "95 % of a level": {"past": ["was"] * 19 + ["is"], "present": ["is"] * 19 + ["was"]},
    "other levels have many words": {"past": ["was"] * 5 + ["had"], "present": ["is"] * 5 + ["has"]},
}
BALANCED = {
    "two words a level": {"past": ["was", "had"], "present": ["is", "has"]},
    "words of both levels": {"past": ["was", "is"], "present": ["was", "is"]},
    "one word alone": {"money": ["bank"], "river": ["bank"]},
    "different words": {"past": list("abcdef"), "present": list("ghijkl")},
}


@pytest.mark.parametrize("case", CONFOUNDED)
def test_features_that_go_with_words_are_named(case):
    (overlap,) = repeated(CONFOUNDED[case]).confounded_with_words()
    assert overlap.feature == "tense"
    assert {"was", "is"} <= {*overlap.words}
    assert (overlap.differing == 0) == (case != "95 % of a level")
    assert (overlap.one_word == 1) == (case in ("one word a level", "upper case"))


@pytest.mark.parametrize("case", BALANCED)
def test_features_that_words_do_not_decide_are_not_named(case):
    assert not repeated(BALANCED[case]).confounded_with_words()


def test_the_grammars_do_not_confound_features_with_words(words):
    assert not words.confounded_with_words()
    assert not crossed_stimuli().confounded_with_words()


def test_how_a_feature_goes_with_words_is_that_of_all_pairs():
    stimuli = repeated(CONFOUNDED["95 % of a level"], times=2)
    (overlap,) = stimuli.confounded_with_words()
    level, word = stimuli.features["tense"].astype(str).to_numpy(), np.array(stimuli.words)
    pairs = np.triu_indices(len(word), 1)
    same_level, same_word = (each[pairs[0]] == each[pairs[1]] for each in (level, word))
    assert overlap.explained == pytest.approx(np.corrcoef(same_level, same_word)[0, 1] ** 2)
    assert overlap.differing == pytest.approx((~same_level)[same_word].mean())
    assert overlap.one_word == pytest.approx(same_word[same_level].mean())


def test_only_stimuli_that_a_feature_applies_to_count():
    words = ["was", "is"] * 12 + list("abcdefghijkl")
    tense = ["past", "present"] * 12 + [None] * 12
    stimuli = made({"tense": tense}, words=words, texts=words, span=[(0, len(word)) for word in words])
    assert stimuli.confounded_with_words()[0].one_word == 1
    of_one = made({"tense": ["past"] * 24 + [None] * 12}, words=["was"] * 24 + words[24:])
    assert of_one.confounded_with_words()[0].words == ["was"]


def test_stimuli_without_features_are_not_called_empty():
    frame = pd.DataFrame({"text": ["the cat sat", "a dog ran"], "word": ["cat", "dog"]})
    states = torch.randn(2, 4)
    with pytest.raises(DataError, match=r"^stimuli has 2 stimuli and no feature; add a column"):
        thinkalike.mlem(states, stimuli=frame)
    with pytest.raises(DataError, match=r"^stimuli has 2 stimuli and no feature; .* in features$"):
        thinkalike.rsa([states, states], stimuli=frame.assign(Number=["a", "b"]), features=[])
    with pytest.raises(DataError, match=r"^stimuli has no stimuli$"):
        Stimuli([], np.array([], dtype=int), [], [], pd.DataFrame({"Number": []}))


def numbered_table(**columns) -> pd.DataFrame:
    """Return stimuli of 32 words with a numeric feature `size`, and these columns."""
    words = [f"word{number}" for number in range(32)]
    return pd.DataFrame({"text": words, "size": [1, 2, 3, 4] * 8, **columns})


def stimuli_of(frame, **settings) -> Stimuli:
    return read_stimuli(stimuli_config(frame, settings))


def test_a_file_whose_time_of_change_is_set_back_is_read_again(tmp_path):
    path = tmp_path / "table.csv"
    frame = numbered_table()
    frame.to_csv(path, index=False)
    stamp = path.stat().st_mtime_ns
    first = stimuli_of(path)
    frame.assign(size=frame["size"][::-1].to_numpy()).to_csv(path, index=False)
    os.utime(path, ns=(stamp, stamp))
    second = stimuli_of(path)
    assert list(second.features["size"]) == list(first.features["size"])[::-1]


@pytest.mark.parametrize("place", ["a relative path", "the home folder"])
def test_one_path_may_name_another_file_later(place, tmp_path, monkeypatch):
    sizes = {"first": [1, 2, 3, 4] * 8, "second": [4, 3, 2, 1] * 8}
    found = {}
    for folder, size in sizes.items():
        (tmp_path / folder).mkdir()
        numbered_table(size=size).to_csv(tmp_path / folder / "table.csv", index=False)
        os.utime(tmp_path / folder / "table.csv", ns=(10**18, 10**18))
        monkeypatch.chdir(tmp_path / folder)
        monkeypatch.setenv("HOME", str(tmp_path / folder))
        path = "table.csv" if place == "a relative path" else "~/table.csv"
        found[folder] = list(stimuli_of(path).features["size"])
    assert found == sizes


ARROW_COLUMNS = {
    "int64[pyarrow]": [1, 2, 3, None] * 8,
    "double[pyarrow]": [0.5, 1.5, None, 3.0] * 8,
    "bool[pyarrow]": [True, False, None, True] * 8,
    "string[pyarrow]": ["a", "b", "", "NaN"] * 8,
    "date32[pyarrow]": [date(2020, 1, 1), date(2021, 1, 1), None, date(2020, 1, 1)] * 8,
    "decimal128(5, 2)[pyarrow]": [Decimal("1.10"), Decimal("2.50"), None, Decimal("3.00")] * 8,
    "timestamp[ns][pyarrow]": [pd.Timestamp("2020"), pd.Timestamp("2021"), None, pd.Timestamp("2020")] * 8,
}


@pytest.mark.parametrize("dtype", ARROW_COLUMNS)
def test_columns_of_arrow_are_read_as_those_of_pandas(dtype):
    values = ARROW_COLUMNS[dtype]
    arrow = pd.Series(values, dtype=object).astype(arrow_type(dtype))
    plain = pd.Series(values)
    if dtype == "int64[pyarrow]":
        plain = plain.astype("Int64")
    codes, levels = stimuli_of(numbered_table(feature=arrow)).codes()
    expected_codes, expected_levels = stimuli_of(numbered_table(feature=plain)).codes()
    assert codes.isnan().any()
    assert torch.equal(codes.nan_to_num(-1), expected_codes.nan_to_num(-1))
    assert levels == expected_levels


def arrow_type(name):
    if name.startswith("decimal"):
        return pd.ArrowDtype(pyarrow.decimal128(5, 2))
    return pd.ArrowDtype(pyarrow.string()) if name.startswith("string") else name


def test_whole_tables_of_arrow_are_read(tmp_path):
    frame = numbered_table(kind=["a", "b", None, "b"] * 8)
    arrow = frame.convert_dtypes(dtype_backend="pyarrow")
    arrow.to_parquet(tmp_path / "arrow.parquet")
    expected = stimuli_of(frame).fingerprint()
    assert stimuli_of(arrow).fingerprint() == expected
    assert stimuli_of(tmp_path / "arrow.parquet").fingerprint() == expected


def test_a_feature_that_is_asked_for_twice_is_refused(tmp_path):
    with pytest.raises(DataError, match="the feature size occurs more than once"):
        stimuli_of(numbered_table(), features=["size", "size"])
    conllu = tmp_path / "words.conllu"
    line = "1\tdogs\t_\tNOUN\t_\tNumber=Plur\t_\t_\t_\t_\n"
    conllu.write_text(f"{line}\n{line.replace('Plur', 'Sing')}\n")
    with pytest.raises(DataError, match="the feature Number occurs more than once"):
        stimuli_of(conllu, features=["Number", "Number"])
    with pytest.raises(DataError, match="the feature Number occurs more than once"):
        stimuli_of("crossed", features=["Number", "Number"])


@pytest.mark.parametrize("name", ["", "  ", "Unnamed: 0"])
def test_columns_without_a_name_are_no_features(name):
    frame = numbered_table()
    frame[name] = [5, 6] * 16
    assert stimuli_of(frame).names == ["size"]


@pytest.mark.parametrize("values", [[True, 1, 2, 3], [False, 0.5, 1.5, 0.5], [np.True_, Decimal(2), None, 3]])
def test_truth_values_among_numbers_are_refused_by_name(values):
    with pytest.raises(DataError, match="size mixes truth values and numbers"):
        stimuli_of(numbered_table(size=pd.Series(values * 8, dtype=object))).codes()


NUMBERS_AS_OBJECTS = {
    "fractions": [0.5 + n / 7 for n in range(32)],
    "with missing ones": [None, *(0.5 + n / 7 for n in range(31))],
    "whole ones and fractions": [n if n % 2 else n / 8 for n in range(32)],
    "whole ones": [*range(4)] * 8,
    "of NumPy": [np.float32(n / 8) for n in range(31)] + [pd.NA],
}


@pytest.mark.parametrize("name", NUMBERS_AS_OBJECTS)
def test_numbers_in_a_column_of_objects_are_numbers(name):
    values = pd.Series(NUMBERS_AS_OBJECTS[name], dtype=object)
    numbers = pd.to_numeric(values)
    as_objects = stimuli_of(numbered_table(feature=values))
    as_numbers = stimuli_of(numbered_table(feature=numbers))
    assert as_objects.names == as_numbers.names == ["size", "feature"]
    assert as_objects.kinds == as_numbers.kinds
    pd.testing.assert_frame_equal(as_objects.features, as_numbers.features)
    assert kind_of(values) == kind_of(numbers)


@pytest.mark.parametrize("levels", [[1, "1"], [True, "True"], [2.0, "2"]])
def test_different_levels_that_are_written_alike_are_refused(levels):
    values = pd.Series([*levels, "b", "c"] * 8, dtype=object)
    for column in (values, values.astype("category")):
        with pytest.raises(DataError, match=r"size has the levels .* which are written alike"):
            stimuli_of(numbered_table(size=column))


def test_equal_numbers_of_two_types_are_one_level():
    values = pd.Series([1.5, Decimal("1.50"), "a", "b"] * 8, dtype=object)
    _, levels = stimuli_of(numbered_table(size=values)).codes()
    assert levels["size"] == ["1.5", "a", "b"]


HALVES = [number / 2 for number in range(32)]


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (Decimal, Decimal("sNaN")),
        (float, Decimal("NaN")),
        (Fraction, pd.NaT),
        (np.array, np.ma.masked),
        (torch.tensor, torch.tensor(torch.nan)),
        (np.longdouble, None),
        (np.float32, np.array(np.nan)),
    ],
)
def test_cells_are_numbers_or_missing_whatever_their_type(make, missing):
    cells = [0.0, missing, *[make(number) for number in HALVES[2:]]]
    stimuli = stimuli_of(numbered_table(size=pd.Series(cells, dtype=object)))
    assert stimuli.kinds["size"] == "continuous"
    expected = [0.0, None, *HALVES[2:]]
    assert stimuli.features["size"].equals(pd.Series(expected, dtype=float))


@pytest.mark.parametrize("cells", [
    np.array(HALVES, dtype=np.longdouble), pd.Series(HALVES, dtype=pd.ArrowDtype(pyarrow.float16())),
    pd.Series([Decimal(number) for number in HALVES], dtype=pd.ArrowDtype(pyarrow.decimal128(10, 1))),
], ids=["longdouble", "float16 of Arrow", "decimal128"])  # fmt: skip
def test_columns_of_numbers_of_other_libraries_are_numbers(cells):
    stimuli = stimuli_of(numbered_table(size=cells))
    assert stimuli.kinds["size"] == "continuous"
    assert stimuli.features["size"].tolist() == HALVES


@pytest.mark.parametrize("step", [Decimal(1), Fraction(1, 3), Decimal("0.1")])
def test_exact_numbers_that_floats_cannot_hold_are_names_or_refused(step):
    with localcontext(prec=50):
        cells = pd.Series([step * (row % 4) + 10**30 for row in range(32)], dtype=object)
    with pytest.raises(DataError, match=r"size has numbers of more than 16 digits; declare kinds={'size': 'nominal'}"):
        stimuli_of(numbered_table(size=cells))
    assert stimuli_of(numbered_table(size=cells), kinds={"size": "nominal"}).features["size"].nunique() == 4


@pytest.mark.parametrize("number", [Decimal("1e9999999"), Decimal("-Infinity"), Fraction(10**400, 3)])
def test_a_number_beyond_floats_is_refused(number):
    cells = pd.Series([number, *HALVES[1:]], dtype=object)
    with pytest.raises(DataError, match=r"row 1: size=-?inf is not a finite number"):
        stimuli_of(numbered_table(size=cells))


def test_tensors_of_other_numbers_have_other_digests():
    """The text of a tensor has four digits."""
    digests = set()
    for change in (0, 1e-6):
        cells = pd.Series([torch.tensor(0.5 + change, dtype=torch.float64)] * 32, dtype=object)
        digests.add(stimuli_config(numbered_table(size=cells), {}).table.digest)
    assert len(digests) == 2


class Named:
    """A cell whose `repr` does not say what its text is."""

    def __init__(self, text):
        self.text = text

    def __repr__(self):
        return "Named"

    def __str__(self):
        return self.text


class NamedText(str):
    """Text that is read as another text."""

    __slots__ = ("text",)

    def __str__(self):
        return self.text


def named_text(text):
    cell = NamedText("same")
    cell.text = text
    return cell


class Size(int):
    """A number that is read as text."""

    def __str__(self):
        return self.label


def named_size(text):
    cell = Size(1)
    cell.label = text
    return cell


@pytest.mark.parametrize("make", [Named, named_text, named_size])
def test_cells_that_are_read_differently_have_different_digests(make):
    digests = []
    for texts in ("abab", "abba"):
        cells = pd.Series([make(text) for text in texts] * 8, dtype=object)
        digests.append(stimuli_config(numbered_table(kind=cells), {}).table.digest)
    assert digests[0] != digests[1]


@pytest.mark.parametrize("name", [None, float("nan"), pd.NA])
def test_a_column_whose_name_is_missing_is_refused(name):
    table = pd.DataFrame({"text": ["a cat", "a dog"], "word": ["cat", "dog"], name: ["x", "y"]})
    with pytest.raises(DataError, match="has a column named"):
        checked_frame(table, "stimuli")


@pytest.mark.parametrize("first", [0.5, Decimal("0.5")])
def test_whole_numbers_beyond_floats_are_refused_in_one_line(first):
    numbers = pd.Series([first, *(10**400 + i for i in range(3))], dtype=object)
    frame = pd.DataFrame({"text": list("abcd"), "number": numbers})
    with pytest.raises(DataError, match="number has numbers of more than 16 digits; declare kinds"):
        read_stimuli(stimuli_config(frame, {}))


def test_numbers_in_names_are_ordered_by_value_however_long_they_are():
    long = "9" * 5000
    names = ["a10", "a9", f"a{long}0", f"a{long}", "a09", "b1", "a", "10", "9x", "٣"]
    assert sorted(names, key=natural_order) == ["٣", "9x", "10", "a", "a09", "a9", "a10", f"a{long}", f"a{long}0", "b1"]


# ---- groups


def table_of_verbs(**columns) -> pd.DataFrame:
    """Three texts of each of 8 verbs; `coin` is drawn for each verb, and `tense` for each text."""
    verbs = [f"verb{row // 3}" for row in range(24)]
    coin = [str(row // 3 % 2) for row in range(24)]
    tense = [str(row % 2) for row in range(24)]
    texts = [f"they {verb} it {row}" for row, verb in enumerate(verbs)]
    return pd.DataFrame({"text": texts, "verb": verbs, "coin": coin, "tense": tense, **columns})


@pytest.mark.parametrize("columns", [None, {"word": "verb"}])
@pytest.mark.parametrize("features", [None, ["coin", "tense"]])
def test_a_column_keeps_the_stimuli_of_each_value_together_and_is_no_feature(features, columns):
    """Whether it is a word, a feature or neither without the setting."""
    config = stimuli_config(table_of_verbs(), {"groups": "verb", "features": features, "columns": columns})
    stimuli = read_stimuli(config)
    assert stimuli.groups.tolist() == [row // 3 for row in range(24)]
    assert (stimuli.names, stimuli.unit) == (["coin", "tense"], "values of verb")
    assert stimuli.take(slice(3, 7)).groups.tolist() == [0, 0, 0, 1]
    ungrouped = read_stimuli(stimuli_config(table_of_verbs(), {"features": features, "columns": columns}))
    assert ungrouped.groups.tolist() == list(range(24))
    assert stimuli.fingerprint() != ungrouped.fingerprint()


def test_words_group_generated_stimuli():
    stimuli = controlled_stimuli(40).grouped_by("word")
    words = pd.Series(stimuli.words).str.casefold()
    assert len(stimuli.groups.unique()) == words.nunique()
    assert stimuli.texts_beside_groups() is not None
    assert {"Word length", "PoS"} <= set(stimuli.constant_features(stimuli.groups))
    assert "Word position" not in stimuli.constant_features(stimuli.groups)


@pytest.mark.parametrize("cell", ["", None])
def test_every_stimulus_needs_a_group(cell):
    table = table_of_verbs()
    table.loc[4, "verb"] = cell
    with pytest.raises(DataError, match="row 5 has no verb"):
        read_stimuli(stimuli_config(table, {"groups": "verb", "features": ["coin"]}))


def test_features_that_a_shared_column_decides_are_told():
    (shared,) = read_table("t", frame=table_of_verbs(), features=["coin", "tense"]).shared_values()
    assert shared == (["coin"], "verb", 8)
    (as_feature,) = read_table("t", frame=table_of_verbs()).shared_values()
    assert as_feature == shared, "the column may be a feature itself"


@pytest.mark.parametrize(
    "columns",
    [{"verb": [f"verb{row // 4}" for row in range(24)]},
     {"verb": [f"verb{row}" for row in range(24)]},
     {"coin": [f"level{row // 3}" for row in range(24)]},
     {"coin": [str(row % 3 % 2) for row in range(24)]}],
    ids=["fewer values than p needs", "a value for each text", "a level for each value", "levels vary"],
)  # fmt: skip
def test_no_column_is_named_that_decides_nothing(columns):
    assert not read_table("t", frame=table_of_verbs(**columns), features=["coin", "tense"]).shared_values()
