"""measure=mlem and measure=rsa: what the command leaves, users' own data, features and words."""

import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import transformers
from scipy.spatial.distance import pdist
from scipy.stats import spearmanr

import thinkalike
import tiny
from conftest import composed, results_in, with_slow
from thinkalike.data.stimuli import controlled_stimuli
from thinkalike.data.tables import read_stimuli, read_table
from thinkalike.errors import ConfigError, DataError
from thinkalike.instruments import instrument_of, of_stimuli
from thinkalike.instruments.mlem import fitting
from thinkalike.instruments.mlem.instrument import FeatureProfiles
from thinkalike.instruments.mlem.table import with_share_of_reference
from thinkalike.job.inputs import contents_of
from thinkalike.measures import MLEM, feature_importance, split_half_reference, weighted_tau
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import StimulusStates, stimulus_states, stimulus_states_of, without_massive

SENTENCES = 24
QUICK = ["measure.permutations=1", "measure.references=0", "measure.alphas=[0.01]"]


@pytest.fixture
def words(tmp_path):
    """The command line of a small job, models apart."""
    return [f"stimuli.sentences={SENTENCES}", f"store={tmp_path}/results"]


def local(path, side="model"):
    chosen = "model@target" if side == "target" else side
    return [f"{chosen}=local", f"{side}.path={path}"]


def states_of(folder: Path, stimuli) -> list[torch.Tensor]:
    """States of words at all blocks, by transformers alone: each text by itself, a word's last token by its offsets."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModel.from_pretrained(folder).eval()
    found = []
    for sentence, (_, stop) in zip(stimuli.sentence, stimuli.span, strict=True):
        encoded = tokenizer(stimuli.texts[sentence], return_offsets_mapping=True)
        place = max(number for number, (first, last) in enumerate(encoded["offset_mapping"]) if first < stop <= last)
        seen: list = []
        hooks = [block.register_forward_hook(lambda *args, seen=seen: seen.append(args[2])) for block in blocks(model)]
        with torch.no_grad():
            model(torch.tensor([encoded["input_ids"]]))
        for hook in hooks:
            hook.remove()
        found.append([(out if isinstance(out, torch.Tensor) else out[0])[0, place] for out in seen])
    return [torch.stack(layer) for layer in zip(*found, strict=True)]


def blocks(model):
    return next(part for part in model.modules() if isinstance(part, torch.nn.ModuleList))


SLOW = pytest.mark.ci_slow


@pytest.mark.parametrize("family", [pytest.param(family, marks=SLOW) for family in ("bert", "gpt2", "mamba")])
@pytest.mark.drawn
def test_an_mlem_job_stores_the_importance_of_features(family, cli, words, checkpoints):
    command = ["analyze.py", "measure=mlem", *local(checkpoints[family]), *words]
    command += ["measure.permutations=2", "measure.alphas=[0.01,1.0]", "measure.massive=keep"]
    done = cli(*command)
    result = done.result
    stimuli = controlled_stimuli(SENTENCES)
    states = states_of(checkpoints[family], stimuli)
    assert len(states) == tiny.LAYERS
    model, groups = MLEM(alpha=[0.01, 1.0]), torch.from_numpy(stimuli.sentence)
    features = stimuli.codes().table
    expected = feature_importance(model, features, states, groups=groups, permutations=2)
    table = result.details
    assert list(table.columns) == ["model", "layer", "feature", "importance", "low", "high", "weight"]
    assert list(table["feature"][:8]) == stimuli.names
    for column, values in zip(("importance", "low", "high"), expected.profile(), strict=True):
        assert np.abs(table[column].to_numpy() - values.flatten().numpy()).max() < 2e-3  # float32 states, in batches
    weights = model.fit(features, states, groups).weights_
    assert np.abs(table["weight"].to_numpy() - weights.flatten().numpy()).max() < 1e-4
    assert np.abs(result.tables["scores"]["score"].to_numpy() - expected.score().value.numpy()).max() < 1e-3
    arrays = result.arrays
    assert arrays["importances"].shape == (tiny.LAYERS, 8, 5)
    made = weighted_tau(torch.from_numpy(arrays["importances"]).mean(-1))
    assert np.abs(result.tables["similarity"]["value"].to_numpy() - made.flatten().numpy()).max() < 1e-12
    assert result.provenance["stimuli"]["count"] == len(stimuli)
    assert {path.stem for path in result.figures} == {"profiles", "similarity"}
    assert f"importance of features in {family}" in done.stdout
    assert sum(bool(re.match(r"│ +\d+ │", line)) for line in done.stdout.splitlines()) == tiny.LAYERS


@pytest.mark.ci_slow
def test_rsa_of_two_models_is_scipys(cli, words, checkpoints):
    both = [*local(checkpoints["bert"]), *local(checkpoints["mamba"], "target")]
    more = ["measure.permutations=9", "measure.distance=cosine", "measure.massive=keep"]
    done = cli("analyze.py", "measure=rsa", *both, *words, *more)
    assert "Least similar" in done.stdout
    table, stimuli = done.result.details, controlled_stimuli(SENTENCES)
    states = [layer for family in ("bert", "mamba") for layer in states_of(checkpoints[family], stimuli)]
    distances = [pdist(layer.double().numpy(), "cosine") for layer in states]
    expected = np.array([[spearmanr(a, b).statistic for b in distances] for a in distances])
    assert np.abs(table["value"].to_numpy().reshape(8, 8) - expected).max() < 1e-4
    assert (table["low"] <= table["value"] + 1e-12).all()
    assert table["p"].between(0.1, 1).all()
    assert (table["p_corrected"] >= table["p"]).all()
    assert list(table["source"][[0, 63]]) == ["bert", "mamba"]


@pytest.mark.ci_slow
def test_pairs_of_features_and_p_values_are_there_when_asked_for(cli, words, table, recording):
    own = [f"activations={recording}", "stimuli=table", f"stimuli.path={table}", "measure.weights=full"]
    more = ["measure.interactions=[[colour,size]]", "measure.null=2"]
    result = cli("analyze.py", "measure=mlem", *own, *words[1:], *QUICK, *more).result
    assert result.details["p"].between(1 / 3, 1).all()
    assert (result.details["p_corrected"] >= result.details["p"]).all()
    assert list(result.tables["interactions"]["features"]) == ["colour x size"] * 2
    assert (result.tables["interactions"]["low"] <= result.tables["interactions"]["effect"]).all()


@pytest.mark.ci_slow
def test_models_share_a_job_and_keep_their_numbers(cli, words, checkpoints):
    one, two = local(checkpoints["bert"]), local(checkpoints["gpt2"], "target")
    tables = [cli("analyze.py", "measure=mlem", *models, *words).result.details for models in ([*one, *two], one)]
    assert list(tables[0]["model"].unique()) == ["bert", "gpt2"]
    pd.testing.assert_frame_equal(tables[0].iloc[: len(tables[1])], tables[1])


@pytest.mark.ci_slow
def test_layers_may_be_chosen(cli, words, checkpoints):
    both = [*local(checkpoints["bert"]), *local(checkpoints["gpt2"], "target"), *words]
    table = cli("analyze.py", "measure=mlem", *both, *QUICK, "layers=[[1,0]]").result.details
    assert [*table.groupby("model")["layer"].unique().map(list)] == [[1], [0]]
    table = cli("analyze.py", "measure=rsa", *both, "layers=[0]").result.details
    assert {*table["source_layer"], *table["target_layer"]} == {0}
    assert "layers: [9,9] is out of range" in cli("analyze.py", "measure=rsa", *both, "layers=[9]").stderr


def test_rows_of_one_text_may_lie_apart(checkpoints):
    model = load_model(composed(*local(checkpoints["bert"]), entry="analyze").model)
    stimuli = controlled_stimuli(SENTENCES)
    order = torch.randperm(len(stimuli)).numpy()
    straight, mixed = (stimulus_states(model, each) for each in (stimuli, stimuli.take(order)))
    for first, second in zip(straight, mixed, strict=True):
        torch.testing.assert_close(first[order], second, atol=1e-5, rtol=1e-5)


@pytest.fixture
def table(tmp_path):
    """Words of 60 texts, with two features."""
    colours, path = ("red", "green", "blue"), tmp_path / "words.csv"
    words = [chr(97 + number // 26) + chr(97 + number % 26) for number in range(60)]
    rows = [f"xx yy {word},{word},{colours[number % 3]},{number % 5}" for number, word in enumerate(words)]
    path.write_text("\n".join(["text,word,colour,size", *rows]) + "\n")
    return path


@pytest.fixture
def recording(tmp_path, table):
    """Two layers in which colour decides the distances, and nothing else; they are called 2 and 10."""
    codes = read_table(table).codes().table
    colour = torch.nn.functional.one_hot(codes[:, 0].long()).double()
    layers = {"10": colour, "2": colour + 0.01 * torch.randn(60, 3).double()}
    ids = [str(number) for number in range(1, 61)]
    np.savez(tmp_path / "brain.npz", **{name: layer.numpy() for name, layer in layers.items()}, ids=ids)
    return tmp_path / "brain.npz"


def test_a_recording_takes_the_place_of_the_model(cli, words, table, recording):
    own = [f"activations={recording}", "stimuli=table", f"stimuli.path={table}"]
    result = cli("analyze.py", "measure=mlem", *own, *words[1:], *QUICK).result
    found = result.details.set_index(["model", "layer", "feature"])["importance"]
    assert [layer for _, layer, _ in found.index[::2]] == [2, 10]
    assert (found[:, :, "colour"] > 0.5).all()
    assert (found[:, :, "size"].abs() < 0.1).all()


def test_the_content_of_a_table_is_in_the_key(table):
    config = composed("measure=mlem", "stimuli=table", f"stimuli.path={table}", entry="analyze")
    before = contents_of(FeatureProfiles().inputs(config))
    table.write_text(table.read_text().replace("red", "pink"))
    after = contents_of(FeatureProfiles().inputs(config))
    assert {name for name in before if before[name] != after[name]} == {"stimuli"}


@pytest.mark.ci_slow
@pytest.mark.drawn
def test_a_job_leaves_the_weights_of_pairs_of_levels(cli, words, table, recording):
    table.write_text(table.read_text().replace(",blue,", ",,", 10))
    own = [f"activations={recording}", "stimuli=table", f"stimuli.path={table}", "measure.difference=levels"]
    result = cli("analyze.py", "measure=mlem", *own, *words[1:]).result
    assert {path.stem for path in result.figures} >= {"profiles"}
    found, stimuli = result.tables["levels"], read_table(table)
    assert list(found.columns) == ["model", "layer", "feature", "level", "other_level", "weight"]
    layers = [torch.from_numpy(np.load(recording)[name]) for name in ("2", "10")]
    kinds = [str(stimuli.kinds[name]) for name in stimuli.names]
    model = MLEM(difference="levels", kinds=kinds)
    model.fit(stimuli.codes().table, layers, torch.from_numpy(stimuli.sentence))
    (colour,) = model.level_weights_
    rows, columns = np.triu_indices(4, 1)
    assert np.abs(found["weight"].to_numpy() - colour.weights[:, rows, columns].flatten().numpy()).max() < 1e-6
    assert set(found["feature"]) == {"colour"}
    assert set(found["level"]) | set(found["other_level"]) == {"missing", "red", "green", "blue"}
    weight = found.set_index(["layer", "level", "other_level"])["weight"][2]
    assert weight["missing", "blue"] < 0.2 * weight["green", "red"], "it was blue"
    scores = pd.read_csv(result.folder / "scores.csv")
    assert (scores["alpha"].isna() == ~model.alpha_.isfinite().numpy()).all()
    assert scores["split_half_reference"].between(0, 1).all()
    assert scores["split_half_reference_of_words"].isna().all(), "a word is in one sentence"


@pytest.mark.slow
@pytest.mark.parametrize("together", [pytest.param("sentence", marks=pytest.mark.ci_slow), "stimulus"])
def test_scores_have_references_of_features_and_of_words(together, cli):
    words = ["model=gpt2-mini", "stimuli.sentences=60", "measure.embed=false", f"measure.together={together}"]
    words += ["measure.folds=2", "measure.alphas=[1.0]"]
    shown = cli("analyze.py", "measure=mlem", *words, "measure.references=2", "measure.permutations=1")
    result = shown.result
    config = composed("measure=mlem", *words, entry="analyze")
    stimuli = read_stimuli(config.stimuli)
    (side,) = stimulus_states_of(config, stimuli, False)
    groups = stimuli.sentence.tolist() if together == "sentence" else None
    rows = [tuple(str(value) for value in row) for row in stimuli.features.itertuples(index=False)]
    for name, cells in (("split_half_reference", rows), ("split_half_reference_of_words", stimuli.words)):
        expected = split_half_reference(cells, side.states, groups=groups, splits=2, seed=0)
        for end, values in zip(("", "_low", "_high"), expected, strict=True):
            assert np.allclose(result.tables["scores"][f"{name}{end}"], values, atol=1e-6)
        assert (result.tables["scores"]["score"] < result.tables["scores"][name]).all()
    scores = result.tables["scores"]
    assert np.allclose(scores["share_of_reference"], scores["score"] / scores["split_half_reference"])
    best = scores.iloc[int(scores["score"].argmax())]
    assert f"{best['share_of_reference']:.0%} of the split-half reference".replace("%", " %") in " ".join(
        shown.stdout.split()
    )


@pytest.mark.parametrize("word", ["measure.together=stimulus", "recipe=paper"])
def test_p_values_of_single_words_of_sentences_are_refused(word):
    config = composed("measure=mlem", "model=gpt2-mini", "measure.null=9", word, entry="analyze")
    with pytest.raises(ConfigError, match="moves whole sentences"):
        instrument_of(config).inputs(config)


def test_a_score_is_no_share_of_a_reference_that_is_not_above_0():
    beside = with_share_of_reference(
        pd.DataFrame({"score": [0.3, 0.2, 0.1], "split_half_reference": [0.6, -0.1, np.nan]})
    )
    assert beside["share_of_reference"].tolist()[0] == 0.5
    assert beside["share_of_reference"].isna().tolist() == [False, True, True]


OF_LEVELS = ["stimuli.features=[word]", "measure.difference=levels"]
BAD = {
    "a feature that is not there": (["stimuli=table", "stimuli.path=TABLE", "stimuli.features=[color]"], "'colour'"),
    "a recording of other stimuli": (["activations=BRAIN"], "lacks 1:1"),
    "tokens of a recording": (["activations=BRAIN", "stimuli.token=mean"], "stimuli.token= has no effect"),
    "a recording and two models": (
        ["activations=BRAIN", "model=gpt2-mini", "model@target=bert-mini"],
        "takes the place of model= or of model@target=",
    ),
    "a stratum that is not there": (["measure.conditional_on=Nmber"], "did you mean 'Number'?"),
    "a number for each row": (
        ["activations=BRAIN", "stimuli=table", "stimuli.path=TABLE", "stimuli.columns={word: null}", *OF_LEVELS],
        "word has a level of its own",
    ),
    "one text in all folds": (["stimuli=table", "stimuli.path=ONE"], "measure.together=stimulus lets folds divide"),
    "constant distances": (["activations=FLAT", "stimuli=table", "stimuli.path=TABLE"], "1 flat b"),
}
LOADING = ["a feature that is not there", "a recording and two models", "a stratum that is not there"]  # the slowest


@pytest.mark.parametrize("case", with_slow(BAD, *LOADING))
def test_what_cannot_be_done_is_one_line(case, cli, words, table, recording, tmp_path):
    more, message = BAD[case]
    line = " ".join(f"word{number}" for number in range(24))
    rows = "\n".join(f"{line},{word},{number % 2}" for number, word in enumerate(line.split()))
    (tmp_path / "one.csv").write_text(f"text,word,odd\n{rows}\n")
    flat = {"a": np.random.default_rng(0).normal(size=(60, 3)), "b": np.ones((60, 3))}
    np.savez(tmp_path / "flat.npz", **flat, ids=np.arange(1, 61))
    paths = {"TABLE": table, "BRAIN": recording, "ONE": tmp_path / "one.csv", "FLAT": tmp_path / "flat.npz"}
    for name, path in paths.items():
        more = [word.replace(name, str(path)) for word in more]
    model = [] if any("activations=" in word for word in more) else ["model=gelu-3l-mini"]
    own = words[1:] if "stimuli=table" in more else words
    assert message in cli("analyze.py", "measure=mlem", *model, *own, *more).error
    assert not results_in(tmp_path / "results")


@pytest.mark.ci_slow
@pytest.mark.parametrize("kind", with_slow(["mlem", "rsa"], "mlem"))
def test_massive_first_words_are_left_out_of_both_sides(kind, cli, words, tmp_path, monkeypatch):
    """A quarter of the stimuli decide a planted model: the result is that without them, or with them if asked."""
    seen = {}

    def planted(config, stimuli, embed):
        first = torch.tensor([start == 0 for start, _ in stimuli.span])
        few = ~first & (torch.arange(len(stimuli)) % 29 == 1)
        draw = torch.Generator().manual_seed(0)
        states = torch.nn.functional.normalize(torch.randn(len(stimuli), 8, generator=draw))
        long = torch.where((first | few)[:, None], 40.0, 1.0) * (states + (first | few)[:, None] * 3)
        seen.update(kept=~(first | few), count=len(stimuli))
        return [
            StimulusStates(name, [0, 1], [states, last], {"name": name}) for name, last in seen["sides"](states, long)
        ]

    few = ["measure.permutations=1"] + QUICK[1:] * (kind == "mlem")
    asked = [*words, f"measure={kind}", "model=gpt2-mini", "model@target=gpt2-mini-s1", "stimuli.sentences=60", *few]
    asked.append("model.bos=false")
    monkeypatch.setattr(of_stimuli, "stimulus_states_of", planted)
    seen["sides"] = lambda states, long: [("a", long), ("b", states)]
    done = cli("analyze.py", *asked)
    kept, count = seen["kept"], seen["count"]
    assert f"{int((~kept).sum())} of {count} stimuli" in done.stderr
    assert "measure.massive=keep includes them, and model.bos=true puts" in done.stderr
    every = cli("analyze.py", *asked, "measure.massive=keep")
    assert "massive activations" not in every.stderr
    assert every.result.scalars["stimuli"] == count

    chosen = of_stimuli.inputs_of_stimuli

    def inputs(config):
        found = chosen(config)
        return {**found, "stimuli": found["stimuli"].take(kept.numpy())}

    def without(config, stimuli, embed):
        whole = planted(config, read_stimuli(config.stimuli), embed)
        return [side._replace(states=[layer[kept] for layer in side.states]) for side in whole]

    monkeypatch.setattr(of_stimuli, "inputs_of_stimuli", inputs)
    monkeypatch.setattr(of_stimuli, "stimulus_states_of", without)
    alone = cli("analyze.py", *asked, f"store={tmp_path}/alone")
    assert "massive activations" not in alone.stderr
    value = {"mlem": "importance", "rsa": "value"}[kind]
    details = done.result.details
    with_massive = details.pop("including_massive_activations")
    np.testing.assert_allclose(with_massive, every.result.details[value], atol=1e-6)
    assert (with_massive - details[value]).abs().max() > 0.1
    pd.testing.assert_frame_equal(details, alone.result.details)
    assert done.result.provenance["stimuli"] == alone.result.provenance["stimuli"]


def test_first_words_stay_unless_massive_or_named():
    stimuli = controlled_stimuli(30)
    first = torch.tensor([start == 0 for start, _ in stimuli.span])
    side = StimulusStates("planted", [0], [torch.where(first[:, None], 2.0, 1.0) * torch.randn(len(stimuli), 8)], {})
    position = stimuli.features["Word position"].astype(int)
    for skip, gone in ((0, 0), (1, int(first.sum())), (2, int((position < position.min() + 2).sum()))):
        chosen = f"measure.skip_first={skip}"
        config = composed("measure=rsa", "model=gpt2-mini", chosen, entry="analyze")
        (left, (kept,)), _ = without_massive(config, stimuli, [side])
        assert len(left) == len(kept.states[0]) == len(stimuli) - gone


def test_a_text_that_is_too_long_is_named(tmp_path, checkpoints):
    (tmp_path / "long.csv").write_text("text,colour\n" + "abc " * 100 + ",red\nabc,green\nabd,green\n")
    model = load_model(composed(*local(checkpoints["gpt2"]), entry="analyze").model)
    with pytest.raises(DataError, match="is longer than the 64 of gpt2; split it: abc abc"):
        stimulus_states(model, read_table(tmp_path / "long.csv"))


def tenses(tmp_path, *, crossed: float, tense: float) -> list[str]:
    """The command line of a recording of "was" and "is", whose states are of the word, and of the tense as planted.

    Args:
        crossed: The share of stimuli in which the word goes with the opposite tense.
        tense: The length of the state that the tense adds to the word's.
    """
    draw, path, count = torch.Generator().manual_seed(0), tmp_path / "tenses.csv", 120
    is_past = torch.arange(count) % 2
    is_was = torch.where(torch.rand(count, generator=draw) < crossed, 1 - is_past, is_past)
    places = torch.arange(count) // 2 % 3
    lines = [
        f"text {n} {('is', 'was')[is_was[n]]},{('is', 'was')[is_was[n]]},{('now', 'then')[is_past[n]]},{places[n]}"
        for n in range(count)
    ]
    path.write_text("\n".join(["text,word,Tense,place", *lines]) + "\n")
    noise = 0.05 * torch.randn(count, 6, generator=draw)
    of_words = 2 * torch.nn.functional.one_hot(is_was, 6)
    of_tenses = tense * torch.nn.functional.one_hot(2 + is_past, 6)
    layers = {"1": of_words + noise, "2": of_words + of_tenses + noise}
    ids = [str(number) for number in range(1, count + 1)]
    np.savez(tmp_path / "brain.npz", **{name: layer.double().numpy() for name, layer in layers.items()}, ids=ids)
    return [f"activations={tmp_path / 'brain.npz'}", "stimuli=table", f"stimuli.path={path}"]


def test_nothing_is_left_of_a_feature_whose_levels_are_one_word_each(cli, words, tmp_path):
    own = tenses(tmp_path, crossed=0.0, tense=0.0)
    found = cli("analyze.py", "measure=mlem", *own, *words[1:], *QUICK)
    table = found.result.details.set_index("feature")
    assert (table.loc["Tense", "importance"] > 0.5).all()
    assert "conditional_on_word" not in table, "nothing can be permuted within the words"
    (sentence,) = found.result.provenance["stimuli"]["confounded_with_words"]
    assert "Tense: every level is one word ('is', 'was')" in sentence
    assert "cannot tell it from the word" in sentence


@pytest.mark.ci_slow
def test_what_a_model_knows_beyond_the_word_is_left(cli, words, tmp_path):
    own = tenses(tmp_path, crossed=0.06, tense=1.5)
    found = cli("analyze.py", "measure=mlem", *own, *words[1:], *QUICK[1:])
    tense = found.result.details.set_index(["feature", "layer"]).loc["Tense"]
    assert tense["importance"].min() > 0.1
    assert abs(tense["conditional_on_word"][1]) < 0.02, "its states are those of the word"
    assert tense["conditional_on_word_low"][2] > 0
    assert tense["conditional_on_word"][2] > 10 * abs(tense["conditional_on_word"][1])


def test_rsa_names_features_of_words_and_compares_pairs_of_one_word(cli, words, tmp_path):
    own = tenses(tmp_path, crossed=0.0, tense=0.0)
    result = cli("analyze.py", "measure=rsa", *own, *words[1:]).result
    assert "Tense" in result.provenance["stimuli"]["confounded_with_words"][0]
    distances = [pdist(layer) for name, layer in np.load(tmp_path / "brain.npz").items() if name != "ids"]
    is_past = np.arange(120) % 2
    within = is_past[np.triu_indices(120, 1)[0]] == is_past[np.triu_indices(120, 1)[1]]
    expected = spearmanr(*(each[within] for each in distances)).statistic
    pair = result.details.query(
        "source_layer == '1' and target_layer == '2' or source_layer == 1 and target_layer == 2"
    )
    assert pair["conditional_on_word"].item() == pytest.approx(expected)


@pytest.mark.ci_slow
def test_balanced_stimuli_have_no_column_given_the_word(cli, words, table, recording):
    own = [f"activations={recording}", "stimuli=table", f"stimuli.path={table}"]
    for measure in (["measure=mlem", *QUICK], ["measure=rsa"]):
        result = cli("analyze.py", *measure, *own, *words[1:]).result
        assert not {"conditional_on_word"} & {*result.details}
        assert "confounded_with_words" not in result.provenance["stimuli"]


def words_in_memory(count: int) -> pd.DataFrame:
    """Return stimuli with one feature, of which no two are of one cell and one text."""
    kinds = ["a", "b"] * (count // 2)
    return pd.DataFrame(
        {"text": [f"word{number} is new" for number in range(count)], "kind": kinds}
        | {"word": [f"word{number}" for number in range(count)]}
    )


def test_the_screen_of_a_table_in_memory_counts_its_stimuli():
    states = np.random.default_rng(0).normal(size=(40, 6))
    settings = {"stimuli": words_in_memory(40), "references": 0, "permutations": 1}
    said = " ".join(str(thinkalike.mlem(states, **settings)).split())
    assert "Computed on 40 stimuli. Spearman's ρ is between" in said
    said = " ".join(str(thinkalike.rsa([states, 2 * states], stimuli=words_in_memory(40))).split())
    assert "Compared by the distances of 40 stimuli; 95 % intervals" in said
    assert of_stimuli.stimuli_in_words({"count": 40, "source": "words.csv"}) == "40 stimuli of words.csv"


@pytest.mark.parametrize(
    ("groups", "bands"),
    [(40, "bands: 95 % intervals over 3 folds"), (6, "no intervals: too few independent stimuli")],
)
@pytest.mark.drawn
def test_the_figure_says_over_how_many_folds_its_bands_are(groups, bands):
    """It said "over folds", also where no band was drawn."""
    states = np.random.default_rng(0).normal(size=(40, 6))
    table = words_in_memory(40).assign(group=[f"group {number % groups}" for number in range(40)])
    settings = {"references": 0, "permutations": 1, "folds": 3, "alphas": [1.0], "groups": "group"}
    result = thinkalike.mlem(states, stimuli=table, **settings)
    figure, _ = result.instrument.plot(result)
    title = " ".join(figure.get_suptitle().split())
    assert title.endswith(f"40 stimuli {bands}")


def random_stimuli(seed: int, strength: float) -> tuple[np.ndarray, pd.DataFrame]:
    """Return random states of 120 texts, with a table of two features of which F may move the states."""
    rng = np.random.default_rng(seed)
    table = pd.DataFrame({"text": [f"text {row}" for row in range(120)]})
    table["F"] = rng.choice(["a", "b"], 120)
    table["G"] = rng.choice(["x", "y"], 120)
    states = rng.normal(size=(120, 6))
    states[:, 0] += strength * (table["F"] == "a")
    return states, table


@pytest.mark.parametrize("seed", with_slow(range(4), 1, 2, 3))
def test_a_feature_matters_only_where_states_depend_on_it(seed):
    for strength, says in [(0, "no feature (matters|is shown to matter)"), (20, "F matters most")]:
        states, table = random_stimuli(seed, strength)
        result = thinkalike.mlem(states, stimuli=table, references=0, alphas=[1.0])
        assert re.search(says, " ".join(str(result).split()))


@pytest.mark.parametrize(
    "names", with_slow([("\u00e9", "e\u0301"), ("\ufb01", "fi"), ("\u00aa", "a")], ("\ufb01", "fi"), ("\u00aa", "a"))
)
def test_features_may_have_names_that_python_takes_for_one(names):
    """Python normalises identifiers, so such names cannot be the fields of one tuple."""
    states, table = random_stimuli(0, 20)
    renamed = table.rename(columns=dict(zip("FG", names, strict=True)))
    settings = {"references": 2, "alphas": [1.0], "permutations": 1, "folds": 2}
    expected = thinkalike.mlem(states, stimuli=table, **settings)
    found = thinkalike.mlem(states, stimuli=renamed, **settings)
    assert found.tables["scores"].equals(expected.tables["scores"])
    assert set(found.table["feature"]) == set(names)


@pytest.mark.ci_slow
def test_what_is_beyond_chance_is_said_where_a_null_was_asked_for():
    for strength, says in [
        (20, "layers: F in 1, G in 0. A feature in 0 layers"),
        (0, "No feature matters beyond chance"),
    ]:
        states, table = random_stimuli(1, strength)
        result = thinkalike.mlem(states, stimuli=table, references=0, alphas=[1.0], null=39)
        assert says in " ".join(str(result).split())


def test_the_feature_of_the_condition_is_not_said_to_matter_or_not():
    states, table = random_stimuli(1, 20)
    result = thinkalike.mlem(
        states, stimuli=table, references=0, alphas=[1.0], null=2, permutations=1, conditional_on="G"
    )
    said = " ".join(str(result).split())
    assert "F in 1" in said or "No feature matters beyond chance conditional on G" in said
    assert "Importances are conditional on G: values are permuted within each of its levels" in said
    assert "G in" not in said


def conditional(nested: str, **settings: object) -> thinkalike.Result:
    """Return MLEM of two layers given the lemma, with a feature that each lemma decides, as planted, and two others."""
    random = np.random.default_rng(1)
    lemma = random.integers(0, 10, 120)
    number = random.integers(0, 2, 120)
    states = random.normal(size=(120, 6))
    states[:, 0] += 4 * (lemma % 2)
    states[:, 1] += 3 * number
    table = pd.DataFrame({"text": [f"w{row}" for row in range(120)], "lemma": [f"L{level}" for level in lemma]})
    table[nested] = lemma % 2
    table["number"] = number
    table["case"] = np.where(lemma < 2, random.integers(0, 2, 120), 0)  # varies within two lemmas
    options = {"references": 0, "alphas": [1.0], "permutations": 2, "conditional_on": "lemma", **settings}
    layers = {"1": states, "2": random.normal(size=(120, 6)) + 2 * number[:, None]}
    return thinkalike.mlem(layers, stimuli=table, **options)


@pytest.mark.ci_slow
def test_a_feature_that_the_condition_decides_is_not_said_to_have_no_weight(tmp_path):
    result = conditional("animate", null=9)
    rows = result.details.set_index("feature")
    assert rows.loc[["animate", "lemma"], ["importance", "low", "high", "p", "p_corrected"]].isna().all(axis=None)
    assert rows.loc[["number", "case"], ["importance", "low", "high", "p", "p_corrected"]].notna().all(axis=None)
    said = " ".join(str(result).split())
    assert "animate cannot be told from lemma: it is constant within each level." in said
    movable = result.provenance["condition"]["movable"]
    assert 0 < movable["case"] < 40
    assert f"number in {movable['number']}, case in {movable['case']} of 120 stimuli" in said
    assert "animate in" not in said
    assert "animate matters" not in said
    result.plot()  # leaves it out
    stored = result.save(tmp_path / "kept")
    assert stored.details["importance"].isna().sum() == 4


def test_a_condition_of_single_stimuli_is_refused_in_one_line(monkeypatch):
    monkeypatch.setattr("thinkalike.instruments.mlem.instrument.fit_profiles", lambda *_: pytest.fail("a fit"))
    states, table = random_stimuli(1, 20)
    table["time"] = np.arange(len(table)) / 7
    options = {"references": 0, "alphas": [1.0], "permutations": 1}
    with pytest.raises(DataError, match=r"conditional_on=.time.: no feature can be permuted.*or leave it out$"):
        thinkalike.mlem(states, stimuli=table, conditional_on="time", **options)


def test_what_was_not_tested_against_chance_is_said_as_that():
    """Of fewer than 8 sentences there is no p, and so no lowest one."""
    states, table = random_stimuli(1, 20)
    words = [f"w{row}" for row in range(40)]
    sentences = [" ".join(words[10 * (row // 10) :][:10]) for row in range(40)]
    table = table[:40].assign(text=sentences, word=words)
    more = {"references": 0, "alphas": [1.0], "permutations": 1, "folds": 2}
    said = " ".join(str(thinkalike.mlem(states[:40], stimuli=table, null=2, **more)).split())
    assert "was not tested, as that takes 8 sentences or more" in said
    assert "beyond chance:" not in said


def stimuli_of_verbs(seed: int, strength: float = 0.0) -> tuple[np.ndarray, pd.DataFrame]:
    """Five texts of each of 20 verbs, with states that a verb decides, and a coin for each verb."""
    random = np.random.default_rng(seed)
    verb = np.repeat(np.arange(20), 5)
    coin = random.permutation(np.arange(20) % 2)
    of_verbs = random.normal(size=(20, 8))
    of_verbs[:, 0] += strength * coin
    states = of_verbs[verb] + 0.5 * random.normal(size=(100, 8))
    texts = [f"text {row}" for row in range(100)]
    tense = np.array(["past", "present"])[np.arange(100) % 2]
    names = [f"verb{number}" for number in verb]
    return states, pd.DataFrame({"text": texts, "verb": names, "coin": coin[verb].astype(str), "tense": tense})


OF_VERBS = {"references": 0, "alphas": [1.0], "permutations": 1}


@pytest.mark.ci_slow
def test_a_feature_of_verbs_is_permuted_by_verb_where_that_is_declared():
    """Texts of a verb are alike, so whatever is drawn for each verb looks important text by text."""
    p_of_coins = {None: [], "verb": []}
    for seed in range(3):
        states, table = stimuli_of_verbs(seed)
        for groups, p in p_of_coins.items():
            result = thinkalike.mlem(states, stimuli=table, features=["coin"], groups=groups, null=19, **OF_VERBS)
            p.append(result.table["p"].iloc[0])
    assert np.median(p_of_coins[None]) <= 0.1
    assert np.median(p_of_coins["verb"]) > 0.1
    states, table = stimuli_of_verbs(0, strength=6.0)
    found = thinkalike.mlem(states, stimuli=table, features=["coin"], groups="verb", null=19, **OF_VERBS)
    assert found.table["p"].iloc[0] <= 0.051, "a feature of verbs that matters"


@pytest.mark.ci_slow
def test_what_p_permutes_is_said():
    states, table = stimuli_of_verbs(0)
    named = {"features": ["coin", "tense"], "null": 2, **OF_VERBS}
    alone = " ".join(str(thinkalike.mlem(states, stimuli=table, **named)).split())
    assert "coin is constant for each of the 20 values of verb. For p, each sentence is permuted alone" in alone
    assert 'groups="verb" permutes whole values' in alone
    without_p = " ".join(str(thinkalike.mlem(states, stimuli=table, **named | {"null": 0})).split())
    assert "coin is constant for each of the 20 values of verb. Stimuli that share a value are alike" in without_p
    assert 'above 0; groups="verb" says how far' in without_p
    declared = " ".join(str(thinkalike.mlem(states, stimuli=table, groups="verb", **named)).split())
    assert (
        "For p, the 20 values of verb are permuted as wholes. tense varies within them: the stimuli of a value get the"
        in declared
    )
    assert "is constant for each" not in declared


@pytest.mark.parametrize(
    ("given", "error"),
    [({"groups": "vreb"}, "has no column vreb"),
     ({"groups": "verb", "features": ["verb"], "null": 9}, "verb has one level for each value of verb"),
     ({"groups": "verb", "together": "stimulus", "null": 9}, "moves whole values of verb"),
     ({"groups": "coin"}, "has 2 values of coin, and folds=5 needs at least")],
)  # fmt: skip
def test_groups_that_cannot_be_kept_together_are_refused(given, error):
    states, table = stimuli_of_verbs(0)
    with pytest.raises((DataError, ConfigError), match=error):
        thinkalike.mlem(states, stimuli=table, **{"alphas": [1.0], "references": 0, **given})


@pytest.mark.parametrize("count", [2, 3, 4])
def test_sentences_that_are_too_few_for_inner_folds_are_counted_as_they_are(count):
    """Of 4 sentences in 3 folds, the 2 that are not held out have no 3 folds, by which α is chosen."""
    words = [f"w{row}" for row in range(60)]
    texts = [" ".join(words[row % count :: count]) for row in range(60)]
    table = pd.DataFrame({"text": texts, "word": words, "F": ["a", "b", "c"] * 20})
    with pytest.raises(DataError, match=rf"has {count} sentences, and folds=3 needs at least 5"):
        thinkalike.mlem(np.random.default_rng(0).normal(size=(60, 4)), stimuli=table, folds=3)


def test_rsa_of_one_layer_says_that_nothing_is_compared():
    states = np.random.default_rng(0).normal(size=(40, 6))
    said = " ".join(str(thinkalike.rsa([states, states], stimuli=words_in_memory(40))).split())
    assert said.startswith("There is one layer only, layer states of arrays, so no two layers are compared.")


@pytest.mark.ci_slow
def test_a_reference_that_is_left_out_names_the_layer_of_its_model(caplog):
    """Layers are counted over both models when they are fitted."""
    good = np.random.default_rng(0).normal(size=(40, 6))
    noise = np.random.default_rng(1).normal(size=(40, 6))
    states = {"early": good + 9 * np.tile([[0.0], [1.0]], (20, 1)), "late": noise}
    thinkalike.mlem(good, states, stimuli=words_in_memory(40), permutations=1)
    (warning,) = [text for text in caplog.messages if "split half reference is left out" in text]
    assert re.search(r"left out: layer \w+ of \w+: no pairs of cells in both halves", warning)
    assert "layers[" not in warning


def test_layers_are_counted_over_all_models():
    sides = [StimulusStates("a", [0, 1], [], {}), StimulusStates("b", [-1, 0], [], {})]
    named = fitting._with_names_of_layers("no intervals of layers[1], layers[2]: why", sides)
    assert named == "no intervals of layer 1 of a, layer -1 of b: why"


def states_of_words(strength: float) -> tuple[np.ndarray, pd.DataFrame]:
    """Return states of 12 words in six sentences each, with the kind of the word, which may move the states."""
    rng = np.random.default_rng(3)
    kinds = rng.permutation(np.arange(12) % 2)
    word_of = np.repeat(np.arange(12), 6)
    centres = rng.normal(size=(12, 8)) + strength * np.outer(kinds, rng.normal(size=8))
    states = centres[word_of] + 0.5 * rng.normal(size=(72, 8))
    table = pd.DataFrame({"text": [f"text {row} has word{word}" for row, word in enumerate(word_of)]})
    table["word"] = [f"word{word}" for word in word_of]
    table["kind"] = np.array(["animal", "tool"])[kinds[word_of]]
    return states, table


FEW_FITS = {"references": 0, "permutations": 2, "folds": 3, "features": ["kind"]}


@pytest.mark.ci_slow
def test_the_screen_says_which_rho_few_groups_reach_by_chance():
    """Labels without any relation to the states reach a ρ far above 0, as stimuli of one word are alike."""
    states, table = states_of_words(0.0)
    result = thinkalike.mlem(states, stimuli=table, groups="word", **FEW_FITS)
    said = " ".join(str(result).split())
    scores = result.tables["scores"]
    assert scores["chance_mean"].item() > 0.2
    by_chance = f"By chance, ρ is {scores['chance_mean'].item():.3f} there on average, and at most"
    assert by_chance in said
    assert "in 19 permutations of the features between the 12 values of word, so that this ρ is not shown" in said
    assert "matters most" not in said
    assert "Computed on 72 stimuli in 12 groups (the values of word)." in said

    states, table = states_of_words(4.0)
    result = thinkalike.mlem(states, stimuli=table, groups="word", **FEW_FITS)
    said = " ".join(str(result).split())
    assert "kind matters most" in said, "control"
    assert "between the 12 values of word. kind" in said
    assert (result.details["importance"] > result.details["chance_greatest"]).all()


def test_no_chance_is_computed_without_groups_or_for_many_stimuli(monkeypatch):
    states, table = states_of_words(4.0)
    alone = thinkalike.mlem(states, stimuli=table, **FEW_FITS)
    assert "chance_mean" not in alone.tables["scores"]
    assert "By chance" not in str(alone)
    monkeypatch.setattr("thinkalike.instruments.mlem.fitting.MOST_STIMULI_FOR_CHANCE", 71)
    many = thinkalike.mlem(states, stimuli=table, groups="word", **FEW_FITS)
    assert "chance_mean" not in many.tables["scores"]
    said = " ".join(str(many).split())
    assert "the stimuli of one of the 12 values of word are alike, the more the fewer these values;" in said
    assert "null=99 says how far" in said
