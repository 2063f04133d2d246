"""measure=ruler: cross-fitted ridge beside scikit-learn, nothing where nothing is shared, and copies read as made."""

import math
import signal
from itertools import product

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import Ridge

import tiny
from conftest import composed, with_ci_slow, with_slow
from thinkalike.errors import DataError, ModelError
from thinkalike.instruments import r2, run_job
from thinkalike.instruments.layer_pairs.readings import layer_pairs_with_bit_widths
from thinkalike.instruments.ruler import words as words_of_ruler
from thinkalike.instruments.ruler.instrument import RulerConfig
from thinkalike.instruments.ruler.table import fisher_z
from thinkalike.instruments.ruler.words import WordComparison
from thinkalike.instruments.stitching.screen import bit_width_in_words
from thinkalike.instruments.stitching.table import bit_width_columns
from thinkalike.measures.bit_readings import interpolated_bits, next_bits, reading_interval
from thinkalike.measures.closed_forms import least_squares
from thinkalike.measures.folds import JACKKNIFE_PARTS, numbered_by_part
from thinkalike.measures.halved_moments import HalvedMoments
from thinkalike.measures.ridge import FOLDS, Predictor, fold_of, with_interval
from thinkalike.measures.ridge_penalty import FEWEST_STANDARD_ERRORS, PENALTIES
from thinkalike.models.load import load_model
from thinkalike.models.rounding import rounded_copy
from thinkalike.processes import Interrupted
from thinkalike.store import Result


def drawn(documents=12, per=20, width=6, seed=0):
    """States and the document of each row, by `numbered_by_part`; rows of a document depend on each other."""
    generator = torch.Generator().manual_seed(seed)
    owner = torch.arange(documents).repeat_interleave(per)
    rows = torch.randn(documents * per, width, generator=generator, dtype=torch.float64)
    shift = torch.randn(documents, width, generator=generator, dtype=torch.float64)
    return rows + 0.7 * shift[owner], numbered_by_part(owner)


def by_scikit_learn(x, y, documents):
    """R² as `Predictor` has it, from scikit-learn's Ridge, fold by fold and penalty by penalty."""
    x, y, folds = x.numpy(), y.numpy(), fold_of(documents).numpy()
    gains, left, whole = np.zeros((FOLDS, len(PENALTIES))), np.zeros((FOLDS, len(PENALTIES) + 1)), np.zeros(FOLDS)
    for fold in range(FOLDS):
        out, own = folds != fold, folds == fold
        apart = y[own] - y[out].mean(0)
        centred = x[out] - x[out].mean(0)
        left[fold, -1] = whole[fold] = (apart**2).sum()
        for place, penalty in enumerate(PENALTIES.tolist()):
            model = Ridge(penalty * (centred**2).sum() / x.shape[1], solver="svd").fit(x[out], y[out])
            left[fold, place] = ((y[own] - model.predict(x[own])) ** 2).sum()
            gains[fold, place] = whole[fold] - left[fold, place]
    residual = 0.0
    for fold in range(FOLDS):
        others = np.delete(gains, fold, 0)
        best = others.sum(0).argmax()
        is_sure = others[:, best].mean() > FEWEST_STANDARD_ERRORS * others[:, best].std(ddof=1) / np.sqrt(FOLDS - 1)
        residual += left[fold, best if is_sure else -1]
    return 1 - residual / whole.sum()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.6])
def test_r2_is_that_of_scikit_learn(share):
    x, documents = drawn()
    noise, _ = drawn(seed=1)
    y = share * x @ torch.randn(6, 6, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + noise
    found = Predictor(x, documents).of(y).shares[0]
    assert float(found) == pytest.approx(by_scikit_learn(x, y, documents), abs=1e-9)
    assert float(found) > 0.05 if share > 0.5 else float(found) < 0.9
    assert JACKKNIFE_PARTS % FOLDS == 0, "or documents would be in several folds"


def test_what_shares_nothing_is_never_far_below_zero():
    found = []
    for seed in range(20):  # 40 rows a fold and width 40: least squares would be far below 0
        (x, documents), (y, _) = drawn(15, 14, 40, seed), drawn(15, 14, 40, seed + 100)
        found.append(float(Predictor(x, documents).of(y).shares[0]))
    assert -0.02 < min(found) <= max(found) < 0.05
    constant = torch.ones_like(x)
    assert Predictor(x, documents).of(constant).shares.abs().max() == 0
    assert Predictor(constant, documents).of(x).shares.abs().max() < 1e-12


@pytest.mark.ci_slow
@pytest.mark.parametrize("documents", [8, 24])
def test_the_interval_of_r2_is_for_maps_fitted_on_as_much_text(documents):
    """Wide states: in 100 draws it holds the mean R² of such maps, and misses the higher one of the best map."""
    width, r2_of_the_best_map = 12, 0.5
    values, lows, highs = [], [], []
    for seed in range(100):
        generator = torch.Generator().manual_seed(seed)
        x, noise = torch.randn(2, documents * 10, width, generator=generator, dtype=torch.float64)
        owner = numbered_by_part(torch.arange(documents).repeat_interleave(10))
        value, low, high = with_interval(Predictor(x, owner).of(x + noise).shares)
        values.append(float(value)), lows.append(float(low)), highs.append(float(high))
    middle, lows, highs = np.mean(values), np.array(lows), np.array(highs)
    assert ((lows <= middle) & (middle <= highs)).mean() >= 0.88
    assert (highs < r2_of_the_best_map).mean() > 0.1, "control: then the text would be enough"


@pytest.mark.parametrize(
    ("points", "readings"),
    [
        ([0.0, 0.25, 0.5, 0.75], {0.0: 2, 0.25: 3, 0.125: 2.5, 0.5: 4, 0.625: 5, 0.75: 6, 0.9: 6}),
        ([0.3, 0.2, 0.5, 0.5], {0.25: 2, 0.4: 3.5}),  # those that fall are made to rise
    ],
)
def test_a_reading_lies_between_the_calibration_points_around_it(points, readings):
    values, points = (
        torch.tensor([*readings]).double(),
        torch.tensor(points).double()[:, None].expand(-1, len(readings)),
    )
    assert interpolated_bits(values, (2, 3, 4, 6), points).tolist() == pytest.approx([*readings.values()])


def test_a_value_below_all_calibration_points_has_an_upper_end_over_documents():
    """Points of 0, .1 and .4 that documents move by .03 leave a value of 0 anywhere up to a half above the lowest."""
    moved = torch.linspace(-0.03, 0.03, JACKKNIFE_PARTS + 1, dtype=torch.float64).roll(JACKKNIFE_PARTS // 2 + 1)
    points = torch.stack([0 * moved, 0.1 + moved, 0.4 + 2 * moved])
    assert with_interval(interpolated_bits(0 * moved, (2, 3, 4), points)).high == 2, "control: not by the replicates"
    middle, low, high = reading_interval(0 * moved, (2, 3, 4), points)
    assert (middle, low) == (2, 2)
    assert 2.02 <= high < 8
    exact = reading_interval(0.25 + 0 * moved, (2, 3, 4), torch.tensor([0, 0.1, 0.4])[:, None].double().expand(-1, 11))
    assert [float(end) for end in exact] == pytest.approx([3.5, 3.5, 3.5])


@pytest.mark.parametrize("size", [1e-5, 1e-4, 1e-3, 1e-2, 0.1])
@pytest.mark.parametrize("center", [0.05, 0.234, 0.33])
def test_the_interval_of_a_reading_ends_where_that_of_the_value_does(size, center):
    """Copies whose values are exact give a scale alone: each end of the value is read on it, at any width."""
    moved = torch.linspace(-1, 1, JACKKNIFE_PARTS + 1, dtype=torch.float64).roll(JACKKNIFE_PARTS // 2 + 1)
    value = center + size * moved / 10
    points = torch.tensor([0, 0.1, 0.4, 0.5])[:, None].double().expand(-1, JACKKNIFE_PARTS + 1)
    reading = reading_interval(value, (2, 3, 4, 5), points)
    of_value = with_interval(value)
    for end, value_at_end in ((reading.low, of_value.low), (reading.high, of_value.high)):
        expected = interpolated_bits(value_at_end[None], (2, 3, 4, 5), points[:, :1])
        assert float(end) == pytest.approx(float(expected), abs=1e-6)
    assert reading.low < reading.value < reading.high, "control: a reading of no width"


@pytest.mark.ci_slow
@pytest.mark.parametrize("deviation", [0.001, 0.01])
def test_narrow_intervals_of_readings_cover_the_truth(deviation):
    """Planted: a value and two copies of known means over ten documents; 95 % are expected of 200 runs."""
    n_covered = 0
    for seed in range(200):
        generator = np.random.default_rng(seed)
        bits = 2.3 + 0.1 * generator.random()
        means = np.array([0.1 + (bits - 2), 0.1, 1.1])
        by_document = means[:, None] + deviation * math.sqrt(10) * generator.normal(size=(3, 10))
        without_one = [np.delete(by_document, document, 1).mean(1) for document in range(10)]
        value, *copies = torch.tensor(np.stack([by_document.mean(1), *without_one], 1))
        reading = reading_interval(value, (2, 3), torch.stack(copies))
        n_covered += bool(reading.low <= bits <= reading.high)
    assert n_covered >= 180


def test_the_fisher_transform_of_a_squared_correlation():
    correlations = torch.tensor([0.0, 0.3, 0.9], dtype=torch.float64)
    expected = [math.atanh(correlation) for correlation in correlations.tolist()]
    assert fisher_z(correlations**2).tolist() == pytest.approx(expected)
    assert fisher_z(torch.tensor([-0.1], dtype=torch.float64)) == 0
    assert fisher_z(torch.ones(1, dtype=torch.float64)).isfinite().all()


# ---- jobs


@pytest.fixture(scope="module")
def copies(tmp_path_factory):
    """A tiny model, its copies of 4 and 3 bits, and one that shares nothing with it but its shape and its tokenizer."""
    root = tmp_path_factory.mktemp("copies")
    base = load_model(tiny.write_mini(root / "base"))
    for bits in (4, 3.5, 3):
        tiny.write_mini(root / f"copy{bits}", module=rounded_copy(base, bits).module)
    tiny.write_mini(root / "other", seed=7)
    tiny.write_mini(root / "wide", d_model=640)
    return root


RULER = ("measure=ruler", "measure.words=3584", "layers=[[1,1],[3,3]]")


@pytest.fixture
def read(copies, text_files, monkeypatch):
    """Return the result of a job of two of these models, which have one store; models read many pieces at once."""
    monkeypatch.setattr(words_of_ruler, "PIECES_PER_PASS", 64)

    def job(source, target, *words, measure=RULER):
        models = [f"model.path={copies}/{source}", f"target.path={copies}/{target}"]
        text = ["data=text", f"data.files=[{text_files}/*.txt]", "data.evaluation_share=0.5", f"store={copies}/store"]
        return run_job(composed(*measure, *models, *text, *words, entry="analyze"))

    return job


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("target", "low", "high", "says"),
    [
        pytest.param(
            *("copy4", 3.7, 4.3, "as similar as gelu-3l-mini[path=base] is to its copy rounded to 4.0 bits"),
            marks=pytest.mark.slow,  # goes the way of copy3
        ),
        ("copy3.5", 3.35, 3.65, "as similar as gelu-3l-mini[path=base] is to its copy rounded to 3."),
        ("copy3", 2.7, 3.3, "as similar as gelu-3l-mini[path=base] is to its copy rounded to 3.0 bits"),
        ("base", 8, 8, "rounded to 8 or more bits"),
        ("other", 2, 2, "no more similar than an untrained network that only mixes"),
    ],
)
def test_copies_read_as_they_were_made(read, capsys, target, low, high, says):
    table = read("base", target).details
    assert table["source_equivalent_bits"].between(low, high).all()
    assert (table["low"] <= table["value"]).all()
    assert (table["value"] <= table["high"]).all()
    assert (table["source_equivalent_bits"] <= table["source_equivalent_bits_high"].fillna(8)).all()
    assert says in " ".join(capsys.readouterr().out.split())


@pytest.mark.ci_slow
def test_further_calibration_points_stand_beside_bits(read, copies, capsys):
    plain = read("base", "copy3")
    result = read("base", "copy3", f"measure.calibration_points=[bits,layers,text,{copies}/copy4,{copies}/base]")
    assert result.details.equals(plain.details)
    points = result.tables["calibration_points"]
    base = points[points["model"] == "gelu-3l-mini[path=base]"].pivot(
        index="calibration_point", columns="layer", values="value"
    )
    assert np.allclose(base.loc[f"{copies}/copy4"], base.loc["4 bits"], atol=1e-3)
    assert np.allclose(base.loc[f"{copies}/base"], 1, atol=1e-3)
    assert base.loc["other text"].abs().max() < 0.05
    assert (base.loc["1 block away"] >= base.loc["2 blocks away"] - 0.02).all()
    assert "2 blocks away" in capsys.readouterr().out
    assert "4 blocks away" not in base.index, "of four layers"
    assert result.key != plain.key


@pytest.mark.parametrize("points", [[], ["bits"], ["bits", "bits"]])
def test_spellings_of_the_same_calibration_points_are_one_job(points):
    assert RulerConfig(calibration_points=points) == RulerConfig()
    assert RulerConfig(calibration_points=[*points, "layers", "layers"]).calibration_points == ["bits", "layers"]


@pytest.mark.ci_slow
def test_a_calibration_point_with_a_shorter_context_reads_the_same_words(read, copies):
    """bert-mini reads 64 tokens, with [CLS] and [SEP]; pieces of text for the others have up to 128 words."""
    shorter = load_model("bert-mini")
    result = read("base", "copy3", "measure.calibration_points=[bits,bert-mini]")
    assert shorter.context < load_model(f"{copies}/base").context, "control"
    point = result.tables["calibration_points"].query("calibration_point == 'bert-mini'")
    assert len(point) == 2 * len(result.details)
    assert point["value"].between(-0.05, 0.95).all()


@pytest.mark.ci_slow
def test_a_calibration_point_that_cannot_be_loaded_stops_the_job_before_any_other(read, monkeypatch, tmp_path):
    tiny.write_mini(tmp_path / "damaged")
    (tmp_path / "damaged" / "model.safetensors").write_bytes(b"damaged")
    monkeypatch.setattr(
        WordComparison, "calibration_states", lambda *_: pytest.fail("another calibration point was made first")
    )
    with pytest.raises(ModelError, match="damaged"):
        read("base", "copy3", f"measure.calibration_points=[bits,{tmp_path}/damaged]")


@pytest.mark.ci_slow
def test_calibration_points_are_kept_when_a_job_stops(read, monkeypatch, tmp_path):
    read_point = WordComparison.calibration_states
    whole = read("base", "copy3")
    seen = []

    def stops(self, side, point):
        seen.append((side, point))
        if len(seen) == 3:
            raise Interrupted(signal.SIGTERM)
        return read_point(self, side, point)

    def resumes(self, side, point):
        seen.append((side, point))
        return read_point(self, side, point)

    monkeypatch.setattr(WordComparison, "calibration_states", stops)
    with pytest.raises(Interrupted):
        read("base", "copy3", f"store={tmp_path}")
    before = seen[:2]
    seen.clear()
    monkeypatch.setattr(WordComparison, "calibration_states", resumes)
    resumed = read("base", "copy3", f"store={tmp_path}")
    assert seen
    assert not set(before) & set(seen)
    assert resumed.details.equals(whole.details)


@pytest.mark.ci_slow
@pytest.mark.parametrize("measure", ["ruler", "r2"])
def test_few_documents_are_refused(read, text_files, measure):
    with pytest.raises(DataError, match="the text of 5 documents, not 2: give more text"):
        read("base", "copy3", f"data.files=['{text_files}/0[0-3].txt']", measure=[f"measure={measure}"])


@pytest.mark.parametrize("measure", with_slow(["ruler", "r2"], "r2"))
def test_a_value_that_its_words_cannot_carry_is_refused(read, copies, measure):
    needed = r"R² needs about \d,\d00 words for models of width 640, and has 1,0\d\d: raise words"
    wide = [f"{side}.path={copies}/wide" for side in ("model", "target")]
    with pytest.raises(DataError, match=needed):
        read("base", "base", *wide, measure=[f"measure={measure}", "measure.words=1024"])


# ---- R² of all layer pairs

R2 = ("measure=r2", "measure.words=3584", "layers=[1,3]")


@pytest.mark.ci_slow
def test_r2_is_what_the_ruler_shares_of_the_same_words(read, capsys):
    shared = read("base", "copy3").details
    result = read("base", "copy3", measure=R2)
    table = result.details.set_index(["source_layer", "target_layer"]).sort_index()
    diagonal = table.loc[[(layer, layer) for layer in shared["source_layer"]]]
    assert diagonal["value"].to_numpy() == pytest.approx(shared["value_forward"].to_numpy(), abs=1e-6)
    assert diagonal["value_backward"].to_numpy() == pytest.approx(shared["value_backward"].to_numpy(), abs=1e-6)
    assert len(table) == 4
    assert (table["low"] <= table["value"]).all()
    assert (table["r2_backward"] <= table["r2_backward_high"]).all()
    screen = " ".join(capsys.readouterr().out.split())
    base, copy = result.details[["source", "target"]].iloc[0]
    assert f"These values predict {copy} from {base}. Predicting {base} from {copy}, residual R² is" in screen
    assert "If word, position and earlier tokens are not regressed out, R² is" in screen
    assert "Its intervals are for maps fitted on as much text; with more text R² rises" in screen
    assert result.instrument.label(result) == "residual R²"


@pytest.mark.parametrize(
    ("target", "rows", "sentences"),
    [
        (
            "b",
            [(0.5, 0.25, 0.75, 0.125)],
            [
                "These values predict b from a. Predicting a from b, residual R² is 0.25.",
                "If word, position and earlier tokens are not regressed out, R² is 0.75, and 0.12 in the reverse "
                "direction.",
            ],
        ),
        (
            "a",
            [(0.5, 0.25, 0.75, 0.5), (0.5, 0.4, 0.8, 0.5)],
            [
                "These values predict the layer of a column from that of a row. Predicting the layer of a row from "
                "that of a column, residual R² is 0.25 to 0.40 between consecutive layers.",
                "If word, position and earlier tokens are not regressed out, R² is 0.75 to 0.80 between consecutive "
                "layers, and 0.50 in the reverse direction.",
            ],
        ),
    ],
)
def test_r2_says_what_is_predicted_from_what(target, rows, sentences):
    table = pd.DataFrame(rows, columns=["value", "value_backward", "r2_forward", "r2_backward"])
    table = table.assign(source="a", target=target)
    assert r2.sentences_of_directions(table) == sentences


@pytest.mark.ci_slow
def test_models_that_share_their_text_alone_have_plain_r2_and_no_more(read):
    all_layers = ("measure=r2", "measure.words=4096")
    other = read("base", "other", measure=all_layers).details
    assert other["r2_forward"].max() > 0.15, "control: words and positions can be predicted"
    assert other[["value", "value_backward"]].to_numpy().max() < 0.05
    same = read("base", "base", measure=all_layers).details
    is_same = same["source_layer"] == same["target_layer"]
    assert same[is_same][["value", "value_backward", "r2_forward", "r2_backward"]].to_numpy() == pytest.approx(
        1, abs=1e-3
    )
    assert same[~is_same]["value"].max() < 0.99


@pytest.mark.ci_slow
def test_states_that_are_not_finite_are_refused(read, monkeypatch):
    word_states = words_of_ruler.word_states

    def overflowing(*arguments):
        return [states.index_fill(-1, torch.tensor(0), torch.inf) for states in word_states(*arguments)]

    monkeypatch.setattr(words_of_ruler, "word_states", overflowing)
    with pytest.raises(DataError, match="is not finite: run it in a wider dtype"):
        read("base", "other", "force=true", measure=R2)


@pytest.mark.ci_slow
def test_results_of_earlier_versions_are_called_plain_r2(read):
    result = read("base", "copy3", measure=R2)
    old = result.details.drop(columns=[name for name in result.details if name.startswith("r2_")])
    earlier = Result(result.folder)
    vars(earlier)["details"] = old
    assert result.instrument.label(earlier) == "R²"
    result.instrument.show(earlier)


def test_layer_pairs_are_the_same_however_many_predictors_fit_in_memory(monkeypatch):
    layers = [drawn(seed=seed)[0] for seed in range(3)]
    layers = [layer + layers[0] for layer in layers]
    documents = drawn()[1]

    def found(targets):
        return r2.r2_of_every_layer_pair(layers, targets, lambda states: Predictor(states, documents), "layer pair")

    whole = found(list(layers))
    alone = [Predictor(layer, documents) for layer in layers]
    torch.testing.assert_close(whole[1, 2, 0], alone[1].of(layers[2]).shares)
    torch.testing.assert_close(whole[1, 2, 1], alone[2].of(layers[1]).shares)
    torch.testing.assert_close(found(layers), whole, rtol=0, atol=1e-12)
    monkeypatch.setattr(r2, "PREDICTOR_BYTES", 1)
    assert torch.equal(found(list(layers)), whole)
    torch.testing.assert_close(found(layers), whole, rtol=0, atol=1e-12)


# ---- readings of measures of layer pairs

OF_LAYERS = {
    "cka": ["measure=cka", "measure.batches=2"],
    "words": ["measure=cka", "measure.batches=2", "measure.unit=word", "measure.conditional_on=token"],
    "mutual_knn": ["measure=mutual_knn", "measure.batches=2"],
}
PAIRS = list(product(OF_LAYERS, ["copy4", "copy3", "base", "other"]))
SHOWN = [("cka", "copy4"), ("cka", "other"), ("mutual_knn", "copy4")]


@pytest.mark.parametrize(("measure", "target"), with_ci_slow(PAIRS, *SHOWN))
def test_measures_read_copies_as_they_were_made(read, capsys, measure, target):
    words = [*OF_LAYERS[measure], "measure.tokens_per_batch=512"]
    result = read("base", target, "ruler=bits", measure=words)
    found, points = (result.tables[name] for name in ("equivalent_bits", "calibration_points"))
    if target in ("copy4", "copy3"):
        own = points[(points["model"] == found["source"][0]) & (points["bits"] == int(target[-1]))]
        assert found["value"].to_numpy() == pytest.approx(own["value"].to_numpy(), abs=1e-3), "the same rows"
        assert found["source_equivalent_bits"].to_numpy() == pytest.approx(int(target[-1]), abs=0.03)
    else:
        assert found["source_equivalent_bits"].to_numpy() == pytest.approx(8 if target == "base" else 2, abs=0.5)
    assert "the local-mixing control is the greatest" in " ".join(capsys.readouterr().out.lower().split())
    alone = read("base", target, measure=words)
    assert alone.details.equals(result.details)
    assert (alone.key != result.key, "equivalent_bits" in alone.tables) == (True, False)


def test_readings_are_of_few_layer_pairs():
    assert layer_pairs_with_bit_widths("all", 30, 18) == [(0, 0), (7, 4), (14, 8), (22, 13), (29, 17)]
    assert layer_pairs_with_bit_widths([[0, 0], [3, 1]], 30, 18) == [(0, 0), (3, 1)]
    assert len(layer_pairs_with_bit_widths([[layer, layer] for layer in range(12)], 30, 18)) == 5


# ---- penalties of stitches


def losses(costs, points, documents=24):
    """Sums by document of a target, of stitches and of copies that lose so many nats per token more than it."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(50, 150, (documents,), generator=generator).double()
    target = tokens * (3 + torch.rand(documents, generator=generator, dtype=torch.float64))
    spread = tokens * (0.8 + 0.4 * torch.rand(documents, generator=generator, dtype=torch.float64))
    spread *= tokens.sum() / spread.sum()
    sums = {"tokens": tokens, "target": target, "stitch": target + torch.tensor(costs)[:, None] * spread}
    return sums | {f"rung_{bits}": target + cost * spread for bits, cost in points.items()}


def test_penalties_read_where_the_target_loses_as_much():
    points = {2: 8.0, 3: 4.0, 4: 1.0, 5: 0.25, 6: 0.06, 8: 0.004}
    found = bit_width_columns(losses([1.0, 0.5, 6.0, 20.0, 0.001, -0.1], points))
    between = 2 + np.log(8 / 6) / np.log(8 / 4)
    assert found["equivalent_bits"] == pytest.approx([4, 4.5, between, 2, 8, 8])
    assert found["equivalent_bits_low"] == pytest.approx(found["equivalent_bits"], abs=1e-6), (
        "φ and calibration points share their documents"
    )
    said = ["4.5", "2.4", "below 2", "8 or more"]
    assert [bit_width_in_words(each) for each in found["equivalent_bits"][1:5]] == said
    assert bit_width_columns(losses([1.0], {})) == {}


def test_a_reading_has_an_interval_where_documents_differ():
    sums = losses([0.5], {4: 1.0, 5: 0.25})
    sums["stitch"] = sums["stitch"] + torch.randn(1, 24, generator=torch.Generator().manual_seed(1)).double() * 10
    found = bit_width_columns(sums)
    assert found["equivalent_bits_low"][0] < found["equivalent_bits"][0] < found["equivalent_bits_high"][0]


def test_calibration_points_are_measured_around_each_value_alone():
    known: dict[int, list[float]] = {}
    true = {2: -8.0, 3: -4.0, 4: -1.0, 5: -0.3, 6: -0.1, 8: -0.01}
    while bits := next_bits([-2.0, -0.2], known):
        known[bits] = [true[bits]] * 2
    assert list(known) == [4, 3, 5, 6]
    assert next_bits([0.5], {each: [true[each]] for each in (4, 5, 6, 8)}) is None


@pytest.mark.parametrize("values_of_copies", [{}, dict.fromkeys(range(2, 9), math.nan), {4: 0.5, 8: math.nan}])
def test_no_copy_is_measured_twice(values_of_copies):
    measured = {}
    while bits := next_bits([math.nan, 0.4], measured):
        assert bits not in measured
        measured[bits] = [math.nan, values_of_copies.get(bits, 0.1 * bits)]
    assert next_bits([math.nan], {4: [0.5], 8: [0.9]}) is None


def test_weights_of_whole_numbers_are_not_rounded(copies):
    model = load_model(copies / "base")
    with torch.no_grad():
        model.module.whole = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.int8), requires_grad=False)
    with pytest.raises(ModelError, match="cannot be rounded"):
        rounded_copy(model, 4)


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("bits", "low", "high"), [(4, 4, 5), pytest.param(3, 3, 4, marks=pytest.mark.ci_slow), (None, 8, 8)]
)
def test_stitches_of_copies_read_as_they_were_made(tmp_path, bits, low, high):
    """A stitch of the last layer has the unembedding of the target, which is not rounded: it reads somewhat above."""
    base = load_model("gpt2-mini")
    (rounded_copy(base, bits) if bits else base).module.save_pretrained(tmp_path / "copy")
    base.tokenizer.save_pretrained(tmp_path / "copy")
    last = base.n_layers - 1
    words = ["model=gpt2-mini", f"model.path={tmp_path}/copy", "model@target=gpt2-mini", "data=grammar"]
    words += ["stitch=identity", f"layers=[[{last},{last}]]", "data.evaluation_tokens=4096", f"store={tmp_path}/store"]
    table = run_job(composed(*words)).details
    assert low <= table["equivalent_bits"].iloc[0] <= high
    if bits == 3:
        alone = run_job(composed(*words, "ruler=null")).details
        assert "equivalent_bits" not in alone
        assert alone["penalty"].equals(table["penalty"])


# ---- R² from moments, whose penalty each half of the documents chooses for the other


def chosen_by_scikit_learn(x, y, halves):
    """The penalty, in sums, with which both halves predict each other best, by scikit-learn; inf: one does not."""
    size = float(((x - x.mean(0)) ** 2).sum() / x.shape[1])
    gained = np.zeros((len(PENALTIES), 2))
    for half in (0, 1):
        fit, other = halves == half, halves != half
        q, r = np.linalg.qr(x[fit] - x[fit].mean(0))  # a few rows that have the same maps
        onto = q.T @ (y[fit] - y[fit].mean(0))
        apart, wanted = x[other] - x[fit].mean(0), y[other] - y[fit].mean(0)
        shared, own = apart.T @ wanted, apart.T @ apart
        for place, penalty in enumerate((PENALTIES * size).tolist()):
            weight = Ridge(penalty, solver="svd", fit_intercept=False).fit(r, onto).coef_.T
            gained[place, half] = (weight * (2 * shared - own @ weight)).sum()  # of squares, by the map
    best = int(gained.sum(1).argmax())
    return PENALTIES[best].item() * size if gained[best].min() > 0 else np.inf


@pytest.mark.parametrize(("share", "size"), [(0.0, (12, 20, 6)), (0.5, (12, 20, 6)), (0.0, (10, 5, 40))])
def test_maps_from_moments_are_those_of_scikit_learn(share, size):
    """Also of fewer rows than columns, where least squares would be far below 0."""
    (x, documents), (noise, _), (new, _), (other, _) = (drawn(*size, seed) for seed in range(4))
    mix = torch.randn(size[-1], size[-1], generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    y, wanted = share * x @ mix + noise, share * new @ mix + other
    moments = HalvedMoments([(0, 0)])
    for part in torch.arange(len(x)).split(70):
        moments.update([x[part]], [y[part]], documents[part] % JACKKNIFE_PARTS)
    found = least_squares(moments, (0, 0), ridge=None)
    penalty = chosen_by_scikit_learn(x.numpy(), y.numpy(), (documents % JACKKNIFE_PARTS % 2).numpy())
    guess = Ridge(penalty, solver="svd").fit(x, y).predict(new) if penalty < np.inf else y.mean(0).numpy()
    whole = ((wanted - y.mean(0)).numpy() ** 2).sum()
    expected = 1 - ((wanted.numpy() - guess) ** 2).sum() / whole
    left = wanted - found(new)
    assert 1 - float(left.square().sum()) / whole == pytest.approx(expected, abs=1e-9)
    assert share or abs(expected) < 0.02
