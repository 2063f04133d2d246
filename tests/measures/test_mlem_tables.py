"""Tables of features as users have them: DataFrames, text, missing values, inferred kinds, levels that are new."""

import datetime
import pickle
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.base import clone
from sklearn.model_selection import KFold, cross_val_score

from thinkalike.measures import MLEM, FeatureEncoder, feature_importance, split_half_reference
from thinkalike.measures.kinds import FeatureColumns, kind_of, plain_column

N = 60
WORDS = ("noun", "verb", "adjective", "pronoun")
FEW = {"folds": 2, "permutations": 1}


def drawn(n=N):
    """Codes of three features, the same as a DataFrame of text, truth values and categories, and states."""
    codes = torch.stack([torch.randint(size, (n,)) for size in (4, 2, 3)], 1).double()
    states = torch.randn(n, 8, dtype=torch.float64)
    for k, column in enumerate(codes.long().T):
        states += 2 * torch.randn(4, 8, dtype=torch.float64)[column] / (1 + k)
    codes[torch.rand(n, 3) < 0.1] = torch.nan
    words, truths, sizes = codes.T.tolist()
    frame = pd.DataFrame(
        {
            "word": [None if place != place else WORDS[int(place)] for place in words],
            "plural": pd.array([pd.NA if place != place else bool(place) for place in truths], dtype="boolean"),
            "size": pd.Categorical.from_codes([-1 if x != x else int(x) for x in sizes], ["s", "m", "l"]),
        }
    )
    return codes, frame, states


FORMS = {
    "DataFrame": lambda frame: frame,
    "objects in a DataFrame": lambda frame: frame.astype(object).where(frame.notna(), np.nan),
    "array of objects": lambda frame: frame.to_numpy(object),
    "lists": lambda frame: frame.astype(object).where(frame.notna(), None).to_numpy().tolist(),
    "array of text": lambda frame: frame.astype(object).where(frame.notna(), np.nan).to_numpy().astype(str),
    "ordered": lambda frame: frame.assign(size=frame["size"].cat.as_ordered()),
    "strings": lambda frame: frame.astype("string"),
}


@pytest.mark.parametrize("form", FORMS)
def test_any_form_of_a_table_gives_the_fit_of_its_codes(form):
    codes, frame, states = drawn()
    X, model = FORMS[form](frame), MLEM(difference="levels", alpha=1.0, kinds="nominal")
    sentences = [f"sentence {row // 4}" for row in range(N)]
    expected = clone(model).fit(codes, states, groups=torch.arange(N) // 4)
    found = model.fit(X, pd.DataFrame(states.numpy()), groups=pd.Series(sentences))
    torch.testing.assert_close(found.predict(X), expected.predict(codes), rtol=1e-8, atol=1e-10)
    assert found.score(X, states) == pytest.approx(expected.score(codes, states), abs=1e-12)


def test_levels_are_called_as_in_the_table():
    _, frame, states = drawn()
    model = MLEM(difference="levels", alpha=1.0).fit(frame, states)
    for fitted in (model, pickle.loads(pickle.dumps(model))):
        levels = [each.levels for each in fitted.level_weights_]
        assert levels == [[None, *sorted(WORDS)], [None, False, True], [None, "s", "m", "l"]]
        assert all(len(each.levels) == len(each.values) == len(each.weights) for each in fitted.level_weights_)
        assert torch.equal(fitted.predict(frame), model.predict(frame))
    numbers = MLEM(difference="levels", alpha=1.0).fit(torch.tensor([[3.0], [7.0]]).repeat(30, 1), states)
    assert numbers.level_weights_[0].levels == [3.0, 7.0]


def test_features_are_called_by_name_or_number():
    _, frame, states = drawn()
    model = MLEM(alpha=1.0)
    by_name = feature_importance(model, frame, states, conditional_on="size", interactions=[("word", "plural")], **FEW)
    by_number = feature_importance(model, frame, states, conditional_on=2, interactions=[(0, 1)], **FEW)
    assert by_name.sets == by_number.sets
    torch.testing.assert_close(by_name.drops, by_number.drops, rtol=0, atol=0, equal_nan=True)


def reference(cells, layers):
    return split_half_reference(cells, layers).value


@pytest.mark.ci_slow
def test_references_take_tables():
    _, frame, states = drawn(300)
    cells = [repr(row) for row in frame.itertuples(index=False)]
    assert float(reference(frame, [states])) == float(reference(cells, [states]))
    assert float(reference(frame.to_numpy(object).tolist(), [states])) == float(reference(cells, [states]))
    named = [str(word) for word in frame["word"]]
    assert float(reference(frame["word"], [states])) == float(reference(named, [states]))


@pytest.mark.parametrize(
    "form", [lambda x: x, lambda x: x.numpy(), lambda x: x.tolist(), lambda x: pd.DataFrame(x.numpy())]
)
def test_planted_weights_of_random_numbers_are_recovered(form):
    """(D_ij)² = Σ_f w_f (x_if - x_jf)²: what MLEM() makes of numbers without being told."""
    x, truth = torch.randn(100, 3, dtype=torch.float64), torch.tensor([2.0, 0.0, 0.5], dtype=torch.float64)
    with pytest.warns(
        UserWarning, match="taken for continuous, for their many values with fractions: features 0, 1, 2"
    ):
        model = MLEM(alpha=0.0, scale="none").fit(form(x), x * truth.sqrt())
    ranges = x.amax(0) - x.amin(0)
    assert (model.weights_ - truth * ranges.square()).abs().max() < 1e-8
    assert abs(float(model.intercept_)) < 1e-8
    new = torch.randn(20, 3, dtype=torch.float64)
    torch.testing.assert_close(model.predict(form(new)), torch.pdist(new * truth.sqrt()).square())


def test_numbers_and_categories_stand_side_by_side():
    codes, frame, states = drawn()
    number = torch.randn(N, dtype=torch.float64)
    states[:, 0] += 5 * number
    table = frame.assign(frequency=pd.array([pd.NA, *number[1:].tolist()], dtype="Float64"))
    with pytest.warns(UserWarning, match="many values with fractions: features frequency"):
        model = MLEM(alpha=1.0, difference="levels").fit(table, states)
    assert model.encoder_.columns.kinds == ("nominal", "nominal", "nominal", "continuous")
    number[0] = torch.nan
    told = MLEM(alpha=1.0, difference="levels", kinds=["nominal"] * 3 + ["continuous"])
    told.fit(torch.cat([codes, number[:, None]], 1), states)
    torch.testing.assert_close(model.predict(table), told.predict(torch.cat([codes, number[:, None]], 1)))


COLUMNS = {
    "nominal": [
        ["a", "b"],
        [True, False],
        ["a", 1],
        pd.Categorical([1, 2]),
        [None, None],
        pd.array(["a", pd.NA], "string"),
    ],
    "ordinal": [pd.Categorical([1, 2], ordered=True)],
    "numeric": [[1, 2], [1.5, 2.5], list(range(100)), [*map(float, range(100)), None], pd.array([1, pd.NA], "Int64")],
    "continuous": [np.arange(10) / 3, [*np.arange(10) / 3, None], np.float32(np.arange(50) / 7), [0.5, *range(9)]],
}


@pytest.mark.parametrize("kind", COLUMNS)
def test_kinds_follow_from_types_and_values(kind, tmp_path):
    for values in COLUMNS[kind]:
        assert kind_of(pd.Series(values)) == kind, values
        assert FeatureColumns.of(pd.DataFrame({"f": values}), {"f": "auto"}).kinds == (kind,)
    assert kind_of(pd.Series([0.5, *range(8)])) == "numeric", "control: nine values"


def test_numbers_that_rounding_takes_apart_are_one_level():
    tenths = pd.DataFrame({"x": [place / 10 for place in range(9)] + [0.1 * place for place in range(9)]})
    assert tenths["x"].nunique() > 10, "control"
    assert kind_of(tenths["x"]) == "numeric"
    assert (FeatureEncoder.fit(tenths).encode(tenths).difference(0) == 0).sum() == 4 * 9


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("offset", [1.7e9, 1e11, 1.7e12, 1.7e14])
def test_a_large_number_keeps_its_fraction(offset, sign):
    """Times in milliseconds are measurements, however many digits they have before the point."""
    times = sign * (offset + np.arange(40) / 16)
    assert kind_of(pd.Series(times)) == "continuous"
    frame = pd.DataFrame({"time": times})
    values, _ = FeatureColumns.of(frame, "nominal").read(frame)
    assert values[:, 0].tolist() == times.tolist()
    assert kind_of(pd.Series(np.round(times))) == "numeric", "control: whole numbers may be codes"


def test_an_array_says_less_of_its_columns_than_a_frame():
    whole = np.arange(40).reshape(20, 2)
    assert FeatureColumns.of(whole).kinds == ("nominal", "nominal")
    assert FeatureColumns.of(pd.DataFrame(whole)).kinds == ("numeric", "numeric")
    assert FeatureColumns.of([[1, "x"], [2, "y"]]).kinds == ("numeric", "nominal")
    assert FeatureColumns.of(np.array([[1, "x"], [2, "nan"]])).kinds == ("numeric", "nominal")


def test_kinds_are_given_by_name_number_or_ordered_levels():
    table = pd.DataFrame({"size": ["m", "s", "l", None], "x": [1, 2, 3, 4], "word": list("abca")})
    columns = FeatureColumns.of(table, {"size": ["s", "m", "l"], 1: "nominal"})
    assert columns.kinds == ("ordinal", "nominal", "nominal")
    assert columns.levels == (("s", "m", "l"), None, ("a", "b", "c"))
    values, _ = columns.read(table)
    torch.testing.assert_close(values[:, 0], torch.tensor([1, 0, 2, torch.nan], dtype=torch.float64), equal_nan=True)
    encoder = FeatureEncoder.fit(table, {"size": ["s", "m", "l"]}, "scaled")
    assert encoder.encode(table).difference(0)[:3, :3].tolist() == [[0, 0.5, 0.5], [0.5, 0, 1], [0.5, 1, 0]]
    numbers = FeatureColumns.of(pd.DataFrame({"f": ["1.5", "2", None]}), "numeric").read(
        pd.DataFrame({"f": ["1.5", "2", None]})
    )
    torch.testing.assert_close(numbers[0][:, 0], torch.tensor([1.5, 2, torch.nan]).double(), equal_nan=True)


LATE = datetime.datetime(2020, 1, 1)
SIZES = pd.DataFrame({"size": ["s", "m", "l"] * 10, "x": [1, 2] * 15})
REFUSED = [
    (["a", "b"], "auto", r"shape \(2,\)"),
    (pd.DataFrame({"x": [1.0, np.inf]}), "auto", "feature x"),
    (SIZES, {"sze": "nominal"}, "sze"),
    (SIZES, {"size": "nominla"}, "nominla"),
    (SIZES, {"size": "ordinal"}, "feature size is ordinal"),
    (SIZES, {"size": ["s", "m"]}, "'l'"),
]


@pytest.mark.parametrize(("table", "kinds", "key"), REFUSED)
def test_tables_and_kinds_that_do_not_fit_are_refused(table, kinds, key):
    with pytest.raises(ValueError, match=key):
        MLEM(kinds=kinds, alpha=1.0).fit(table, torch.randn(len(table), 4))


def test_columns_keep_their_names_and_order():
    _, frame, states = drawn()
    model = MLEM(alpha=1.0).fit(frame, states)
    with pytest.raises(ValueError, match="plural, word, size"):
        model.predict(frame[["plural", "word", "size"]])
    with pytest.raises(ValueError, match="the features word, plural,"):
        model.score(frame[["word", "plural"]], states)
    with pytest.warns(UserWarning, match="X has no names"):
        unnamed = model.predict(frame.to_numpy(object))
    assert torch.equal(unnamed, model.predict(frame))


def test_intervals_and_dates_may_be_categories():
    _, frame, states = drawn()
    numbers = torch.randn(N).numpy()
    cut = frame.assign(size=pd.cut(numbers, [-9, 0, 1, 9]), day=pd.Categorical([LATE, None] * (N // 2)))
    model = MLEM(alpha=1.0, difference="levels").fit(cut, states)
    assert model.encoder_.columns.kinds == ("nominal", "nominal", "ordinal", "nominal")
    assert model.encoder_.columns.levels[2] == ("(-9, 0]", "(0, 1]", "(1, 9]")
    codes = torch.from_numpy(np.digitize(numbers, [0, 1], right=True).copy()).double()
    told = model.encoder_.columns.read(cut)[0][:, 2]
    assert torch.equal(told, codes)


@pytest.mark.parametrize("difference", ["indicator", "levels"])
def test_a_new_level_is_refused_by_name(difference):
    codes, frame, states = drawn()
    whole = codes.nan_to_num(0)
    model = MLEM(difference=difference, alpha=1.0).fit(whole, states)
    whole[[3, 5], 1] = 9
    for call in (lambda: model.predict(whole), lambda: model.score(whole, states)):
        with pytest.raises(ValueError, match=r"feature 1 has 9.0 in 2 stimuli"):
            call()
    model.fit(frame, states)
    other = frame.assign(word=["adverb", *frame["word"][1:]])
    with pytest.raises(ValueError, match=r"feature word has 'adverb' in 1 stimuli, .*unknown='new'"):
        model.predict(other)


def test_a_missing_value_is_new_where_none_was_missing():
    codes, _, states = drawn()
    whole = codes.nan_to_num(0)
    for missing in ("ignore", "drop"):
        assert MLEM(alpha=1.0, missing=missing).fit(whole, states).predict(codes).isfinite().all()
    with pytest.raises(ValueError, match=r"feature \d has None in \d+ stimuli"):
        MLEM(alpha=1.0).fit(whole, states).predict(codes)


def test_a_new_level_is_as_far_as_the_mean_if_that_is_asked_for():
    """Two new levels differ from each other, too, and equal ones do not."""
    table = pd.DataFrame({"f": list("abc") * 10, "g": list("xyyxx") * 6})
    states = torch.randn(30, 4, dtype=torch.float64)
    model = MLEM(difference="levels", alpha=1.0, unknown="new", scale="none").fit(table, states)
    found = model.predict(pd.DataFrame({"f": ["a", "new", "newer", "new"], "g": ["x"] * 4})) - model.intercept_
    torch.testing.assert_close(found, model.weights_[0] * torch.tensor([1, 1, 1, 1, 0, 1]).double())


def test_folds_of_a_table_know_all_its_levels():
    """Importance, its null and the choice of α go on where a fold has a level that the others lack."""
    _, frame, states = drawn()
    frame = frame.assign(word=["adverb", *frame["word"][1:]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = MLEM(difference="levels", alpha=(1.0, 10.0), folds=2)
        assert feature_importance(model, frame, states, null=1, **FEW).drops.isfinite().all()
        folds = KFold(3, shuffle=True, random_state=0)
        asked = MLEM(alpha=1.0, unknown="new")
        assert np.isfinite(cross_val_score(asked, frame, states.numpy(), cv=folds)).all()
        declared = frame.astype({"word": "category"}).assign(plural=frame["plural"].fillna(False))
        assert np.isfinite(cross_val_score(MLEM(alpha=1.0), declared, states.numpy(), cv=folds)).all()
    with pytest.warns(UserWarning, match="has 'adverb' in 1 stimuli"):
        scores = cross_val_score(MLEM(alpha=1.0), frame, states.numpy(), cv=folds)
    assert np.isnan(scores).sum() == 1, "the control: that fold alone"


@pytest.mark.parametrize(
    ("make", "missing"),
    [
        (Decimal, Decimal("sNaN")),
        (Fraction, pd.NaT),
        (np.array, np.ma.masked),
        (torch.tensor, Decimal("NaN")),
        (np.longdouble, None),
    ],
)
def test_objects_of_numbers_are_numbers_whatever_their_type(make, missing):
    numbers = [number / 2 for number in range(12)]
    cells = pd.Series([missing, 0.5, *map(make, numbers)], dtype=object)
    frame = pd.DataFrame({"f": cells})
    columns = FeatureColumns.of(frame, ["continuous"])
    assert kind_of(plain_column(cells, "f")) == "continuous"
    values, _ = columns.read(frame)
    assert values[1:].flatten().tolist() == [0.5, *numbers]
    assert values[0].isnan()
    named, _ = FeatureColumns.of(frame, ["nominal"]).read(frame)
    assert named[1] == named[3], "equal numbers of two types are one level"


def test_exact_numbers_that_are_one_float_are_refused_by_the_name_of_their_feature():
    frame = pd.DataFrame({"f": [Fraction(1, 3), Fraction(1, 3) + Fraction(1, 10**30)] * 6})
    with pytest.raises(ValueError, match=r"feature f has numbers of more than 16 digits.*give them as text"):
        FeatureColumns.of(frame)


@pytest.mark.parametrize("cells", [[10**400 + i % 3 for i in range(12)], [-(10**400), 0.5, None, *range(9)]])
def test_whole_numbers_beyond_floats_are_refused_by_the_name_of_their_feature(cells):
    frame = pd.DataFrame({"f": pd.Series(cells, dtype=object)})
    with pytest.raises(ValueError, match=r"feature f has whole numbers beyond 2\^53.*give them as text"):
        FeatureColumns.of(frame).read(frame)
    texts = frame.map(str, na_action="ignore").map(lambda cell: f"n{cell}")
    assert FeatureColumns.of(texts).kinds == ("nominal",), "control"
