"""Public functions and metrics take arrays of every sort, with the values that tensors have; or say what is wrong."""

import inspect
import pickle
import re
import time
import warnings
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest
import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from thinkalike import measures
from thinkalike.arguments import NAMES, Count, Level, checked_numbers, takes_arrays, tensor_of
from thinkalike.measures import (
    CKA,
    MLEM,
    CKAMeasure,
    DistanceCorrelation,
    FeatureEncoder,
    LayerMeans,
    MutualKNN,
    NeuralDistances,
    Predictor,
    Procrustes,
    ResidualStates,
    RowGroups,
    cka,
    hsic1,
    mutual_knn,
    rsa,
    token_loss,
    weighted_tau,
)
from thinkalike.measures.mlem.differentiable import DifferentiableMLEM
from thinkalike.measures.neighbour_sets import jaccard, second_order_cosine
from thinkalike.stitches.stitch import StitchModule

N, D = 24, 4
DRAWN = torch.Generator().manual_seed(0)


def normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=DRAWN, dtype=torch.float64)


X, Y = normal(N, D), normal(N, D)
VECTORS = normal(3, 28)  # distances of eight stimuli
POSITIVE, SQUARE = normal(3, N).abs() + 0.1, torch.cdist(normal(D, 3), normal(D, 3))
SYMMETRIC, GRAM = SQUARE + SQUARE.T - torch.diag((SQUARE + SQUARE.T).diagonal()), X @ X.T
CELLS = (9.0 * torch.arange(6) ** 2)[:, None].double()
COUNTS = torch.arange(N) % 5 + 1.0
GROUPS = torch.arange(N) % 6
TOKENS = torch.arange(N) % D
HEAD = nn.Linear(D, D, dtype=torch.float64)
TABLE = torch.stack([GROUPS % 2, GROUPS % 3], 1).double()
MEANT = X + 3 * torch.cat([TABLE, TABLE], 1)  # states in which these features show
MODELS = normal(4, 4, N)

# by function, of each sort of signature: its arguments, in which each tensor is given as every sort of array
CALLS = {
    "bootstrap_interval": {"sums": POSITIVE, "counts": COUNTS},
    "split_half_reference": {"cells": GROUPS, "layers": [(9 * X).round() + CELLS[GROUPS], Y.round() + CELLS[GROUPS]],
                             "splits": 3},
    "cka": {"X": X, "Y": Y},
    "compare": {"x": VECTORS, "y": VECTORS + 1},
    "crossnobis": {"runs": normal(3, 6, D)},
    "feature_importance": {"model": MLEM(alpha=1.0), "X": TABLE, "Y": MEANT, "groups": GROUPS, "folds": 2},
    "hsic1": {"K": GRAM, "L": Y @ Y.T},
    "jackknife": {"value": X[0], "replicates": X},
    "mantel": {"layers": [X, Y], "permutations": 9},
    "mutual_knn": {"X": X, "Y": Y, "k": 2, "groups": TOKENS},
    "calibrate": {"function": lambda x, y: x[0, 0] * y[0, 0], "X": X, "Y": Y, "groups": GROUPS, "permutations": 3},
    "permuted_rows": {"documents": GROUPS.sort().values, "seed": 0},
    "rows_of": {"states": X.view(6, 4, D), "flatten": "token", "mask": GROUPS.view(6, 4) > 0},
    "rsa": {"layers": [X, Y], "others": [Y]},
    "rsa_estimate": {"layers": [X, Y], "groups": GROUPS, "folds": 3},
    "stimulus_folds": {"n": N, "folds": 3, "groups": GROUPS},
    "sum_by_document": {"values": POSITIVE, "documents": GROUPS, "count": 6},
    "token_loss": {"states": X, "finish": HEAD, "targets": TOKENS},
    "unigram_entropy": {"tokens": TOKENS},
    "weighted_tau": {"profiles": POSITIVE, "others": MODELS[0]},
}  # fmt: skip


def gathered(metric, source, target, **more):
    """What a metric says of two batches."""
    for number in range(2):
        metric.update(source, target, number=number, **more)
    return metric.compute()


def left_of(words, states):
    """What is left of states of twelve documents beyond their words and positions."""
    rows = len(states)
    return ResidualStates(words, torch.arange(rows) % 12, [torch.arange(rows) // 12]).of(states)


def fitted(X, Y, groups):
    model = MLEM(alpha=1.0).fit(X, Y, groups)
    return model.weights_, model.predict(X), model.score(X, Y)


SIDES = {"source": [X, Y], "target": [Y]}
OBJECTS = {  # by class: what its methods give of these arguments
    "CKA": (lambda **given: gathered(CKA(2, 1, conditional_on="token"), **given), {**SIDES, "groups": TOKENS}),
    "LayerMeans": (
        lambda **given: gathered(LayerMeans(2, 1, DistanceCorrelation(), 2), **given),
        {**SIDES, "documents": GROUPS},
    ),
    "Accumulator": (
        lambda **given: gathered(LayerMeans(2, 1, MutualKNN(2), conditional_on="token"), **given),
        {**SIDES, "groups": TOKENS},
    ),
    "Predictor": (lambda x, y, documents: Predictor(x, documents).of(y).shares, {"x": X, "y": Y, "documents": GROUPS}),
    "ResidualStates": (left_of, {"words": TOKENS, "states": X}),
    "LayerMeasure": (lambda X, Y: Procrustes().of(X, Y), {"X": X, "Y": Y}),
    "MLEM": (fitted, {"X": TABLE, "Y": MEANT, "groups": GROUPS}),
    "FeatureEncoder": (lambda X: FeatureEncoder.fit(X).encode(X).levels, {"X": TABLE}),
    "DifferentiableMLEM": (
        lambda states: DifferentiableMLEM(2).double().loss(FeatureEncoder.fit(TABLE).encode(TABLE), states),
        {"states": X},
    ),
    "NeuralDistances": (lambda states: NeuralDistances.of(states).vector(), {"states": X}),
    "RowGroups": (lambda tokens: RowGroups.of(tokens, 4).order, {"tokens": TOKENS}),
}  # fmt: skip
EVERY = {name: (getattr(measures, name), given) for name, given in CALLS.items()} | OBJECTS


def test_every_public_function_takes_arrays():
    public = [found for name in measures.__all__ if inspect.isfunction(found := getattr(measures, name))]
    assert len(public) > 40
    assert {found.__code__ for found in public} == {takes_arrays(keep).__code__}


def as_pandas(values: Tensor):
    kinds = {1: pd.Series, 2: pd.DataFrame}
    return kinds.get(values.ndim, np.asarray)(values.numpy())


def as_nullable(values: Tensor):
    return as_pandas(values).convert_dtypes() if values.ndim in (1, 2) else values.numpy()


def read_only(values: Tensor):
    array = values.numpy().copy()
    array.flags.writeable = False
    return array


SORTS = {
    "numpy": Tensor.numpy,
    "lists": Tensor.tolist,
    "pandas": as_pandas,
    "nullable": as_nullable,
    "read-only": read_only,
    "backwards": lambda values: values.numpy()[::-1].copy()[::-1],
    "byte order": lambda values: values.numpy().astype(values.numpy().dtype.newbyteorder()),
    "objects": lambda values: values.numpy().astype(object),
}


def changed(given, change, only=None):
    """Arguments in which tensors, those inside lists too, are changed."""
    if isinstance(given, Tensor):
        return change(given)
    if isinstance(given, list):
        return [changed(each, change) for each in given]
    if isinstance(given, dict):
        return {name: changed(each, change) if only in (None, name) else each for name, each in given.items()}
    return given


def called(name, **given):
    function, _ = EVERY[name]
    if "generator" in given:
        given["generator"] = torch.Generator().manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of features that say much the same
        return numbers(function(**given))


def numbers(found):
    """All numbers of a result, as a list of tensors."""
    if isinstance(found, Tensor | float | int):
        return [torch.as_tensor(found)]
    if isinstance(found, str | type(None)):
        return []
    if hasattr(found, "__dataclass_fields__"):
        found = vars(found).values()
    return [number for each in found for number in numbers(each)]


def agree(name, given, expected, tolerance=0.0):
    for one, other in zip(called(name, **given), expected, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize(
    "values", [X, COUNTS, TOKENS, TOKENS > 1, MODELS.float()], ids=["rows", "counts", "whole", "mask", "cube"]
)
def test_every_sort_of_array_becomes_the_tensor(values, sort):
    found = tensor_of(SORTS[sort](values), Shaped, "values")
    assert (found.dtype == torch.bool) == (values.dtype == torch.bool)
    torch.testing.assert_close(found, values, rtol=0, atol=0, check_dtype=False)


@pytest.mark.parametrize("name", EVERY)
def test_every_public_name_takes_arrays_tables_and_lists(name):
    given = EVERY[name][1]
    expected = called(name, **given)
    assert expected
    for sort in ("lists", "nullable", "backwards"):
        agree(name, changed(given, SORTS[sort]), expected)


@pytest.mark.parametrize("name", EVERY)
def test_whole_numbers_are_taken_for_the_real_numbers_they_are(name):
    whole = changed(EVERY[name][1], lambda values: (7 * values).round() if values.is_floating_point() else values)
    expected = called(name, **whole)
    for sort in (Tensor.int, lambda values: values.short().numpy()):
        agree(name, changed(whole, lambda each, sort=sort: sort(each) if each.is_floating_point() else each), expected)


@pytest.mark.parametrize("name", EVERY)
def test_halves_give_the_value_of_the_numbers_that_they_are(name):
    def given(dtype):
        rounded = changed(EVERY[name][1], lambda x: x.bfloat16().to(dtype) if x.is_floating_point() else x)
        return rounded | ({"finish": HEAD.to(torch.bfloat16).to(dtype)} if "finish" in rounded else {})

    expected = called(name, **given(torch.float64))
    agree(name, given(torch.bfloat16), expected, 2e-2)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.uint16, torch.uint32, torch.uint64])
def test_unsigned_numbers_are_the_numbers_that_they_are(dtype):
    whole = (50 * X.abs()).round()
    assert cka(whole.to(dtype), Y) == cka(whole, Y)
    assert mutual_knn(X, Y, 2, GROUPS.to(dtype)) == mutual_knn(X, Y, 2, GROUPS)


NAMED_BY = {name: key for name in EVERY for key in NAMES if isinstance(EVERY[name][1].get(key), Tensor)}


@pytest.mark.parametrize("name", NAMED_BY)
def test_groups_may_be_names(name):
    given, key = EVERY[name][1], NAMED_BY[name]
    names = [f"sentence {number}" for number in given[key].tolist()]
    for sort in (list, np.array, lambda names: pd.Series(names, dtype="category")):
        agree(name, {**given, key: sort(names)}, called(name, **given))


WRONG = {  # with the name of the argument that the error begins with
    "text": (lambda: cka("a", Y), "X"),
    "nothing": (lambda: cka(X, None), "Y"),
    "a vector": (lambda: cka(X, Y[0].numpy()), "Y"),
    "a matrix of text": (lambda: cka(X, Y.numpy().astype(str)), "Y"),
    "complex numbers": (lambda: cka(X.numpy() * 1j, Y), "X"),
    "dates": (lambda: cka(X, pd.DataFrame({"day": pd.to_datetime(["2026-01-01"] * N)})), "Y"),
    "None": (lambda: cka(None, Y), "X is a single missing value, such as None or NaN: give real numbers"),
    "a single NaN": (lambda: cka(X, NAN), "Y is a single missing value"),
    "a missing value of pandas": (lambda: cka(pd.NA, Y), "X is a single missing value"),
    "a masked number": (lambda: cka(X, np.ma.masked), "Y is a single missing value"),
    "a gap": (lambda: cka(X, [[*row[:-1], None] for row in Y.tolist()]), r"Y lacks a value at \[0, 3\]"),
    "a gap of pandas": (lambda: cka(as_nullable(X.masked_fill(X > 2, torch.nan)), Y), r"X lacks a value at \["),
    "a group without a name": (lambda: mutual_knn(X, Y, 2, ["a", None] * 12), r"groups lacks a value at \[1\]"),
    "a masked array": (lambda: cka(np.ma.masked_less(X.numpy(), 0), Y), r"X lacks a value at \["),
    "fractions for numbers of tokens": (lambda: token_loss(X, HEAD, X[:, 0]), "targets"),
    "no square": (lambda: hsic1(GRAM[:, :3], GRAM[:, :3]), "K"),
    "one layer": (lambda: rsa(X.numpy()), "layers"),
    "a table as layers": (lambda: rsa(pd.DataFrame(X)), "layers"),
    "a layer of text": (lambda: CKA(1, 1).update([X], [X.numpy().astype(str)]), r"target\[0\]"),
    "layers by name": (lambda: rsa({"first": X}), "layers"),
    "a tensor with a gap": (lambda: weighted_tau(VECTORS * torch.nan), r"profiles lacks a value at \["),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_is_no_array_of_that_shape_is_refused_by_name(what):
    call, message = WRONG[what]
    with pytest.raises(ValueError, match=f"^{message}"):
        call()


NAMED = pd.DataFrame(X.numpy(), index=[f"word {row}" for row in range(N)])
FEATURES = pd.DataFrame(TABLE.numpy(), NAMED.index)
SHUFFLED = NAMED.sample(frac=1, random_state=0)
REPEATED = NAMED.set_axis([f"word {row // 2}" for row in range(N)])


@pytest.mark.parametrize(
    "call",
    [
        lambda: cka(NAMED, SHUFFLED),
        lambda: cka(X=SHUFFLED, Y=NAMED),
        lambda: rsa([NAMED, SHUFFLED]),
        lambda: rsa([NAMED], [SHUFFLED]),
        lambda: CKA(1, 1).update([NAMED], [SHUFFLED]),
        lambda: MLEM().fit(FEATURES, SHUFFLED),
        lambda: MLEM().fit(FEATURES, [X, SHUFFLED]),
        lambda: MLEM().fit(TABLE, NAMED, groups=pd.Series(range(N), SHUFFLED.index)),
        lambda: cka(pd.DataFrame(X.numpy()), pd.DataFrame(X.numpy()).sample(frac=1, random_state=0)),
        lambda: cka(REPEATED, REPEATED.sample(frac=1, random_state=0)),
        lambda: cka(NAMED[1:], SHUFFLED[:-1]),
    ],
)
def test_tables_whose_rows_are_in_another_order_are_refused(call):
    """Their rows are paired by order, so that a shuffled copy would be as unlike as noise."""
    with pytest.raises(ValueError, match="rows are paired by their order"):
        call()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (NAMED, SHUFFLED.loc[NAMED.index]),
        (NAMED, pd.DataFrame(X.numpy())),
        (NAMED, SHUFFLED.to_numpy()),
        (pd.DataFrame(X.numpy())[::2], pd.DataFrame(X.numpy())[::2].reset_index(drop=True)),
        (NAMED, NAMED.set_axis([f"sound {row}" for row in range(N)])),
        (REPEATED, REPEATED),
    ],
)
def test_tables_without_common_labels_are_paired_by_order(first, second):
    arrays = [np.asarray(each) for each in (first, second)]
    assert cka(first, second) == cka(*arrays)


DOCUMENTS = list("abcdef")
IN_ANOTHER_ORDER = list("fabdce")
BY_DOCUMENT = pd.DataFrame(normal(3, 6).numpy(), columns=DOCUMENTS)
LENGTHS = pd.Series([5.0, 6, 7, 8, 9, 10], index=DOCUMENTS)
OF_DOCUMENTS = BY_DOCUMENT.T @ BY_DOCUMENT


def labelled(names):
    return BY_DOCUMENT.set_axis(list(names), axis=1)


MOVED_COLUMNS = {
    "profiles": lambda: weighted_tau(BY_DOCUMENT, BY_DOCUMENT[IN_ANOTHER_ORDER]),
    "ranks": lambda: measures.spearman(BY_DOCUMENT, BY_DOCUMENT[IN_ANOTHER_ORDER]),
    "distances": lambda: measures.compare(BY_DOCUMENT, BY_DOCUMENT[IN_ANOTHER_ORDER]),
    "documents": lambda: measures.bootstrap_interval(BY_DOCUMENT, LENGTHS.loc[IN_ANOTHER_ORDER]),
    "documents and seeds": lambda: measures.documents_and_seeds_interval(BY_DOCUMENT, LENGTHS.loc[IN_ANOTHER_ORDER]),
    "values without groups": lambda: measures.jackknife(BY_DOCUMENT.iloc[0], BY_DOCUMENT[IN_ANOTHER_ORDER]),
    "columns of a Gram": lambda: measures.hsic0(OF_DOCUMENTS[IN_ANOTHER_ORDER], OF_DOCUMENTS),
    "two Grams": lambda: measures.hsic1(OF_DOCUMENTS, OF_DOCUMENTS.loc[IN_ANOTHER_ORDER, IN_ANOTHER_ORDER]),
    "text and numbers": lambda: measures.spearman(labelled("012345"), labelled([1, 0, 2, 3, 4, 5])),
    "text and real numbers": lambda: measures.spearman(labelled([1.0, 0.0, 2.0, 3.0, 4.0, 5.0]), labelled("012345")),
}


@pytest.mark.parametrize("call", MOVED_COLUMNS.values(), ids=MOVED_COLUMNS)
def test_columns_that_are_paired_and_in_another_order_are_refused(call):
    """Annotations say which axes are paired: those that have one name."""
    with pytest.raises(ValueError, match="are paired by their order"):
        call()


def test_the_remedy_for_columns_in_another_order_gives_the_right_value():
    shuffled = BY_DOCUMENT[IN_ANOTHER_ORDER]
    with pytest.raises(ValueError, match="are paired by their order") as refused:
        measures.spearman(BY_DOCUMENT, shuffled)
    expression = str(refused.value).partition("give ")[2].partition(", or arrays")[0]
    mended = eval(expression, {"x": BY_DOCUMENT, "y": shuffled})
    assert torch.allclose(measures.spearman(BY_DOCUMENT, mended), torch.ones(3, dtype=torch.float64))


def test_axes_that_are_not_paired_may_have_any_order():
    """Profiles of layers in another order are no mistake, and no column of states is paired by CKA."""
    layers = BY_DOCUMENT.set_axis(list("xyz"))
    assert weighted_tau(layers, layers.iloc[[1, 0, 2]])[0, 1] == pytest.approx(1)
    assert cka(BY_DOCUMENT.T, BY_DOCUMENT.T[[1, 0, 2]]) == pytest.approx(1)
    assert measures.spearman(labelled("012345"), labelled(range(6)))[0] == pytest.approx(1)


def test_one_array_of_all_layers_is_a_list_of_them():
    both = torch.stack([X, Y])
    for layers in (both, both.numpy()):
        torch.testing.assert_close(rsa(layers), rsa([X, Y]), rtol=0, atol=1e-12)


def test_layers_that_are_converted_one_by_one_stay_apart():
    """What was made of a slice must not be taken for the next one, which may stand where the slice stood."""
    whole = torch.randint(0, 9, (2, 3, 30, 5))
    for sort in (Tensor.clone, Tensor.numpy, Tensor.int, Tensor.bool):
        together, apart = (LayerMeans(3, 3, CKAMeasure()) for _ in range(2))
        sides = [sort(side) for side in whole]
        together.update(*sides)
        apart.update(*(list(side) for side in sides))
        assert torch.equal(together.compute().value, apart.compute().value)
        assert together.compute().value.diagonal().max() < 0.5, "the two sides have nothing in common"


def test_functions_and_measures_of_layers_can_be_pickled():
    assert pickle.loads(pickle.dumps(cka)) is cka
    for measure in (Procrustes(), DistanceCorrelation(), CKAMeasure(), MutualKNN(3)):
        again = pickle.loads(pickle.dumps(measure))
        assert torch.equal(again.of(X, Y), measure.of(X, Y))


def test_gradients_reach_tensors_also_those_in_a_list_of_rows():
    rows = [row.clone().requires_grad_() for row in X]
    cka(rows, Y.numpy()).backward()
    whole = X.clone().requires_grad_()
    cka(whole, Y).backward()
    torch.testing.assert_close(torch.stack([row.grad for row in rows]), whole.grad)


def test_a_tensor_stays_the_same_object_and_an_array_its_memory():
    assert tensor_of(X, Float, "X") is X
    array = X.numpy().copy()
    tensor_of(array, Float, "X")[0, 0] = 7
    assert array[0, 0] == 7
    layers = [X, Y]
    same = []
    taking = takes_arrays(keep)
    taking(layers, layers, same)
    assert same[0] is layers
    assert same[1] is layers


def keep(first: Sequence[Float[Tensor, "n d"]], second: Sequence[Float[Tensor, "n d"]], found: list) -> None:
    found += [first, second]


def masked(values: Tensor):
    return np.ma.masked_less(values.numpy(), -1)


class Lazy:
    """What another library has for a masked array."""

    def __array__(self, dtype=None, copy=None):
        return masked(X)


def no_number(sums=POSITIVE[0], counts=COUNTS, **settings):
    return lambda: measures.bootstrap_interval(sums, counts, **settings)


def importance(model: object = None, **settings):
    """Feature importance as users call it, without checks of types by the tests."""
    function = takes_arrays(inspect.unwrap(measures.feature_importance))
    return function(MLEM(alpha=1.0) if model is None else model, TABLE, MEANT, **settings)


def no_interval(bounds: object):
    return lambda: inspect.unwrap(measures.bootstrap_interval)(2 * COUNTS, COUNTS, bounds=bounds)


def endless(first: object) -> list:
    """A list that contains itself."""
    values = [first]
    values.append(values)
    return values


REFUSED = {  # by what is wrong: a call, and the argument that the error begins with
    "masked rows in a list": (lambda: cka(list(masked(X)), Y), r"X\[\d+\] lacks a value"),
    "a masked layer": (lambda: rsa([masked(X)]), r"layers\[0\] lacks a value"),
    "masked features": (lambda: MLEM().fit(np.ma.masked_equal(TABLE.numpy(), 1), X), "X lacks a value"),
    "a masked constant": (lambda: cka([[np.ma.masked, 1.0]] * N, Y), "X"),
    "an object that gives a masked array": (lambda: cka(Lazy(), Y), "X lacks a value"),
    "a tensor of 8 bits": (lambda: cka(X.to(torch.float8_e4m3fn), Y), "X is a tensor that is quantised"),
    "whole numbers beyond int64": (lambda: cka(np.full((N, 2), 2**64 - 1, dtype=np.uint64), Y), "X holds whole"),
    "a tensor beyond int64": (lambda: cka(torch.full((N, 2), -1).view(torch.uint64), Y), "X holds whole"),
    "a tensor of 4 bits": (lambda: cka(X.to(torch.uint8).view(torch.uint4), Y), "X is a tensor that is quantised"),
    "a seed of 70 bits": (lambda: measures.mantel([X], seed=2**70), "seed=.* at least 0 and below 2.63$"),
    "a complex tensor": (lambda: cka(X + 0j, Y), "X is a tensor that is complex"),
    "a sparse tensor": (lambda: cka(X, Y.to_sparse()), "Y is a tensor that is sparse"),
    "a compressed tensor": (lambda: cka(X.to_sparse_csr(), Y), "X is a tensor that is sparse"),
    "a tensor without values": (lambda: rsa([X, X.to("meta")]), r"layers\[1\] is a tensor that is on the device meta"),
    "a quantised tensor": (
        lambda: cka(torch.quantize_per_tensor(X.float(), 0.1, 0, torch.qint8), Y),
        "X is a tensor that is quantised",
    ),
    "a nested tensor": (lambda: cka(torch.nested.nested_tensor([X, Y]), Y), "X is a tensor that is nested"),
    "rows of unequal lengths": (lambda: cka([[1.0, 2.0], [3.0]] * 6, Y), "X has rows of unequal lengths"),
    "tensors of unequal lengths": (lambda: cka([X[0], X[1, :2]] * 6, Y), "X has rows of unequal lengths"),
    "whole numbers beyond float64": (lambda: measures.mid_ranks([2**53, 2**53 + 1, 1]), "values holds whole numbers"),
    "no layers": (lambda: rsa([]), "layers is empty"),
    "a fraction as a number": (lambda: mutual_knn(X, Y, k=5.0), "k=5.0 must be a whole number"),
    "True as a number": (lambda: mutual_knn(X, Y, k=True), "k=True must be a whole number"),
    "NumPy's True as a number": (lambda: mutual_knn(X, Y, k=np.bool_(True)), "k="),
    "text as a number": (lambda: mutual_knn(X, Y, k="5"), "k='5' must be a whole number"),
    "none at all": (lambda: mutual_knn(X, Y, k=0), "k=0 must be a whole number, at least 1"),
    "a negative number": (lambda: measures.mantel([X], permutations=-1), "permutations=-1 must be a whole number"),
    "groups of fewer stimuli": (lambda: measures.mantel([X], groups=GROUPS[1:]), "groups has shape"),
    "groups of more stimuli": (lambda: measures.mantel([X], groups=[*range(N + 1)]), "groups has shape"),
    "infinite sums": (no_number(sums=POSITIVE[0] / 0), "sums holds inf"),
    "negative counts": (no_number(counts=-COUNTS), "counts holds -"),
    "negative lengths": (lambda: measures.effective_number([3, -1]), "counts holds -1"),
    "one resample": (no_number(resamples=1), "resamples=1"),
    "a fraction as a seed": (no_number(seed=1.7), "seed=1.7"),
    "a seed that is not a number": (no_number(seed=float("nan")), "seed=nan"),
    "a negative seed": (no_number(seed=-1), "seed=-1"),
    "a level of 0": (no_number(level=0), "level=0 must be a finite number, above 0 and below 1"),
    "a level that float64 takes for 0": (no_number(level=1e-17), "level=1e-17 is closer to 0 than float64"),
    "a level that float64 takes for 1": (no_number(level=1 - 2**-53), "level=.* is closer to 1 than float64"),
    "angles for CKA": (
        lambda: measures.arc_length([90.0, 80.0]),
        "ckas holds 80: its values must be .* at most 1.000001",
    ),
    "counts without values": (no_number(sums=POSITIVE[0].numpy(), counts=COUNTS.to("meta")), "counts is a tensor that"),
    "a sparse ridge": (
        lambda: MLEM().set_params(alpha=torch.ones(2).to_sparse()).fit(TABLE, X),
        "alpha=tensor.* must be a finite",
    ),
    "a ridge without value": (
        lambda: MLEM().set_params(alpha=torch.ones(2).to("meta")).fit(TABLE, X),
        "alpha=tensor.* must be a f",
    ),
    "bytes for cells": (
        lambda: measures.split_half_reference(bytearray(range(N)), [X]),
        "cells is bytearray: give a table",
    ),
    "memory for cells": (
        lambda: measures.split_half_reference(memoryview(bytes(range(N))), [X]),
        "cells is memoryview: give a table",
    ),
    "groups of two": (
        lambda: mutual_knn(X, Y, groups=range(N)),
        "k=10 neighbours of a row need 12 rows of its group, and the largest group has 1: ",
    ),
    "a level in percent": (lambda: measures.fold_interval([1.0, 2.0], level=95), "level=95"),
    "text as a switch": (no_number(together="no"), "together='no' must be True or False"),
    "a number as a switch": (no_number(together=1), "together=1 must be True or False"),
    "one fold": (lambda: measures.fold_interval([1.0]), "values has 1 fold"),
    "one row": (lambda: measures.hsic0([[1.0]], [[1.0]]), "the biased HSIC needs at least 2 rows"),
    "no layer of a metric": (lambda: CKA(0, 1), "source_layers=0"),
    "half a layer of a metric": (lambda: LayerMeans(1, 1.5, Procrustes()), "target_layers=1.5"),
    "two features of one name": (lambda: MLEM().fit(pd.DataFrame(TABLE, columns=["a", "a"]), X), "X has two columns"),
    "folds of an estimator": (lambda: MLEM().set_params(folds=2.5).fit(TABLE, X), "folds=2.5"),
    "a seed of an estimator": (lambda: MLEM().set_params(seed="a").fit(TABLE, X), "seed='a'"),
    "True as a ridge": (lambda: MLEM().set_params(alpha=True).fit(TABLE, X), "alpha=True"),
    "a stitch without width": (lambda: StitchModule("linear", 0, 4), "width_in=0"),
    "half a rank": (lambda: StitchModule("low_rank", 4, 4, rank=2.5), "rank=2.5"),
    "a rank above the width": (lambda: StitchModule("low_rank", 4, 8, rank=5), "rank=5 is more than the smaller width"),
    "permutations without end": (
        lambda: measures.calibrate(cka, X, Y, GROUPS, permutations=10**30),
        "permutations=1000.* at least 1 and at most 1,000,000$",
    ),
    "permutations of Mantel's test": (
        lambda: measures.mantel([X], permutations=2**63),
        "permutations=.* at most 1,000",
    ),
    "permutations of a metric": (lambda: CKA(1, 1, permutations=10**12), "permutations=.* at most 1,000,000"),
    "draws of a null": (lambda: importance(null=10**7), "null=10000000 .* at most 1,000,000"),
    "resamples without end": (no_number(resamples=2**63), "resamples=.* at least 100 and at most 1,000,000"),
    "chunks below one": (lambda: token_loss(X, HEAD, TOKENS, chunk=-1), "chunk=-1 must be a whole number, at least 1"),
    "chunks of nothing": (lambda: token_loss(X, HEAD, TOKENS, chunk=0), "chunk=0 must be a whole number, at least 1"),
    "a token beyond the vocabulary": (
        lambda: token_loss(X, nn.Identity(), TOKENS + 2),
        "targets holds 5, .* 4 tokens: 0 to 3",
    ),
    "a negative token": (lambda: token_loss(X, nn.Identity(), TOKENS - 1), "targets holds -1"),
    "a token of 40 bits": (lambda: token_loss(X, nn.Identity(), TOKENS + 2**40), "targets holds 10995"),
    "groups beyond int64": (
        lambda: measures.calibrate(cka, X, Y, GROUPS * 1e19, permutations=9),
        "groups holds numbers beyond 2.63",
    ),
    "infinite groups": (lambda: mutual_knn(X, Y, 2, torch.full((N,), torch.inf)), "groups holds numbers beyond 2.63"),
    "groups that are not a number": (lambda: mutual_knn(X, Y, 2, X[:, 0] * torch.nan), "groups lacks a value"),
    "states without units": (lambda: cka(X, Y[:, :0]), r"Y has shape \(24, 0\), without columns"),
    "layers without units": (lambda: rsa([X, Y[:, :0]]), r"layers\[1\] has shape \(24, 0\), without columns"),
    "states of an estimator without units": (lambda: MLEM().fit(TABLE, X[:, :0]), r"states has shape \(24, 0\)"),
    "neighbours without units": (lambda: mutual_knn(X[:, :0], Y), r"X has shape \(24, 0\)"),
    "losses of states without units": (lambda: token_loss(X[:, :0], HEAD, TOKENS), r"states has shape \(24, 0\)"),
    "leverage of no rows": (lambda: measures.leverage(X[:0]), r"features has shape \(0, 4\)"),
    "distances of one stimulus": (lambda: rsa([X[:1]], [Y]), r"layers\[0\] has 1 stimuli: give two or more"),
    "distances of no stimulus": (lambda: rsa([X[:0]]), r"layers\[0\] has 0 stimuli"),
    "other stimuli": (lambda: measures.mantel([X], [Y[:2]]), r"others\[0\] has 2 stimuli, and layers\[0\] has 24"),
    "infinite states": (lambda: rsa([X / 0]), r"states of layers\[0\] are not finite: correct them"),
    "a list that contains itself": (lambda: weighted_tau(endless(1.0)), "profiles contains itself"),
    "an argument in itself": (lambda: cka(endless("a"), Y), "X contains itself"),
    "states in themselves": (lambda: MLEM().fit(TABLE, endless("a")), "Y contains itself"),
    "a mask of numbers": (
        lambda: CKA(1, 1).update([X], [Y], mask=np.ones(N)),
        "mask holds torch.float64, .* as mask > 0",
    ),
    "a ridge beyond float64": (
        lambda: MLEM().set_params(alpha=10**400).fit(TABLE, X),
        "alpha=1000.* must be a finite number",
    ),
    "a ridge of thousands of digits": (
        lambda: MLEM().set_params(alpha=10**5000).fit(TABLE, X),
        r"alpha=10\^5000 must be a finite",
    ),
    "ridges beyond float64": (
        lambda: MLEM().set_params(alpha=[1, 10**400]).fit(TABLE, X),
        "alpha=.* must be a finite number",
    ),
    "an infinite ridge": (
        lambda: MLEM().set_params(alpha=np.inf).fit(TABLE, X),
        "alpha=inf .*; inf goes with difference='levels'",
    ),
    "a ridge of text": (lambda: MLEM().set_params(alpha=["a"]).fit(TABLE, X), r"alpha=\['a'\] must be a finite number"),
    "no states": (lambda: MLEM().fit(TABLE, []), "Y has no layers"),
    "a name as an estimator": (lambda: importance("x"), "model='x' must be an object of the class MLEM"),
    "a class as an estimator": (lambda: importance(MLEM), "model=<class .* must be an object of the class MLEM"),
    "a list as a feature": (
        lambda: importance(conditional_on=["a"]),
        r"conditional_on=\['a'\] must be a whole number or text",
    ),
    "a pair of one feature": (
        lambda: importance(interactions=[(0,)]),
        r"interactions=\[\(0,\)\] must be a list of pairs",
    ),
    "text as a pair": (lambda: importance(interactions=["ab"]), r"interactions=\['ab'\] must be a list of pairs"),
    "text as pairs": (lambda: importance(interactions="ab"), "interactions='ab' must be a list of pairs"),
    "features beyond float64": (lambda: MLEM().fit([[2**60 + i] for i in range(N)], X), "feature 0 has whole numbers"),
    "features beyond int64": (
        lambda: MLEM().fit(np.arange(N, dtype=np.uint64)[:, None] + np.uint64(2**63), X),
        "feature 0 has whole numbers beyond 2.53",
    ),
    "a tensor of features beyond float64": (
        lambda: MLEM().fit(torch.arange(N)[:, None] + 2**60, X),
        "feature 0 has whole numbers beyond 2.53",
    ),
    "complex features": (
        lambda: MLEM().fit(pd.DataFrame({"c": 1j * np.arange(N)}), X),
        "feature c has complex numbers",
    ),
    "an array of complex features": (lambda: MLEM().fit(1j * TABLE.numpy(), X), "feature 0 has complex numbers"),
    "no features": (lambda: MLEM().fit(TABLE[:, :0], X), "X has 0 features: give 1 to 1,000"),
    "too many features": (lambda: MLEM().fit(np.random.rand(N, 1001), X), "X has 1,001 features: give 1 to 1,000"),
    "no stimuli": (lambda: MLEM().fit(TABLE[:0], X[:0]), "X has 0 stimuli: give two or more"),
    "a level twice": (
        lambda: MLEM().set_params(kinds={0: [0, 1, 0]}).fit(TABLE, X),
        "kinds of feature 0=.* different levels",
    ),
    "no levels of a kind": (
        lambda: MLEM().set_params(kinds={0: []}).fit(TABLE, X),
        r"kinds of feature 0=\[\] must be one of",
    ),
    "kinds of other features": (
        lambda: MLEM().set_params(kinds=["nominal"]).fit(TABLE, X),
        r"kinds=\['nominal'\] must be one kind",
    ),
    "folds of one stimulus": (lambda: MLEM(folds=N).fit(TABLE, X), "folds=24 leaves a fold .* choose at most 8$"),
    "more folds than stimuli": (lambda: MLEM(folds=N + 1).fit(TABLE, X), "folds=25 leaves a fold .* choose at most 8$"),
    "folds of two stimuli": (lambda: importance(folds=12), "folds=12 leaves a fold .* choose at most 8$"),
    "folds of whole groups": (
        lambda: MLEM(folds=4).fit(TABLE, X, [0] * 20 + [1, 2, 3, 3]),
        "folds=4 of whole groups leaves a fold with 1 stimuli",
    ),
    "bounds that fall": (no_interval((10, 0)), r"bounds=\(10, 0\) must be two numbers"),
    "one bound": (no_interval((0,)), r"bounds=\(0,\) must be two numbers"),
    "bounds of text": (no_interval(("a", "b")), r"bounds=\('a', 'b'\) must be two numbers"),
    "bounds of None": (no_interval((None, None)), r"bounds=\(None, None\) must be two numbers"),
    "no bounds": (no_interval(None), "bounds=None must be two numbers"),
    "a mean above its bound": (
        no_interval((0, 1)),
        "a mean of .* is above the greatest value in bounds, 1",
    ),
    "a mean below its bound": (no_interval((3, 4)), "a mean of .* is below the least value in bounds, 3"),
}


def moments(states: Tensor = X) -> measures.Moments:
    """The moments of one layer pair."""
    gathered_moments = measures.Moments([(0, 0)])
    gathered_moments.update([states], [Y])
    return gathered_moments


def scored(value: object):
    """Calibrate a function that returns this value."""
    return lambda: measures.calibrate(lambda x, y: value, X, Y, range(N), permutations=2)


NAN = torch.nan
RUN = X[None]
PERMUTED = {"interactions": [(0, 1), (1, 0)]}
CHOICES_OF_ODD_TYPES = {
    "an array": np.ones(3),
    "a table": pd.DataFrame({"a": [1]}),
    "NA": pd.NA,
    "a tensor": torch.ones(2),
    "a number": 3,
}
REFUSED |= {
    f"{what} as a choice": (lambda odd=odd: cka(X, Y, kernel=odd), "kernel=.* must be text$")
    for what, odd in CHOICES_OF_ODD_TYPES.items()
}
REFUSED |= {
    # values that give NaN, or another wrong number, without a word
    "NaN in a Gram matrix": (lambda: hsic1(GRAM * NAN, GRAM), "K holds nan: its values must be finite"),
    "NaN in HSICs": (lambda: measures.alignment(GRAM * NAN), "hsics holds nan"),
    "NaN in states": (lambda: measures.token_kl(X * NAN, HEAD, X), "states holds nan"),
    "NaN among ranked values": (lambda: measures.mid_ranks(X * NAN), "values holds nan: its values must be numbers"),
    "NaN in an interval": (lambda: measures.interval_around(X * NAN, 1.0), "value holds nan"),
    "a negative half": (lambda: measures.interval_around(X, -1.0), "half=-1.0 must be a finite number, at least 0"),
    "True as a half": (lambda: measures.interval_around(X, True), "half=True must be"),
    "negative draws": (lambda: measures.compare(VECTORS, VECTORS, counts=-torch.ones(1, 8)), "counts holds -1"),
    "half a draw": (lambda: measures.compare(VECTORS, VECTORS, counts=torch.full((1, 8), 0.5)), "counts has shape"),
    "draws of no pair": (lambda: measures.compare(VECTORS, VECTORS, counts=torch.zeros(1, 8)), "counts has a resample"),
    "runs that are equal": (
        lambda: measures.crossnobis(torch.stack([X * 0.1] * 3), "diagonal"),
        "unit 0 is the same in all runs",
    ),
    "text as a ridge": (lambda: MLEM().set_params(alpha="3").fit(TABLE, X), "alpha='3' must be a finite number"),
    "a switch among ridges": (
        lambda: MLEM().set_params(alpha=[True]).fit(TABLE, X),
        r"alpha=\[True\] must be a finite number",
    ),
    "states beyond float64": (
        lambda: measures.procrustes(moments(X * 1e300), (0, 0)),
        r"sources or targets of \(0, 0\) are too large",
    ),
    "residuals beyond float64": (lambda: measures.noise_covariance(X * 1e200, 3), "residuals are of the size 3e.200"),
    "a complex ridge": (lambda: MLEM().set_params(alpha=3j).fit(TABLE, X), "alpha=3j must be a finite number"),
    "a pair of features twice": (lambda: importance(**PERMUTED), r"interactions has \(1, 0\) twice"),
    "a missing name in a list": (lambda: mutual_knn(X, Y, 2, ["a", NAN] * 12), r"groups lacks a value at \[1\]"),
    "features beyond 64 bits": (
        lambda: MLEM(kinds="numeric").fit([[2**70 + row % 2] for row in range(N)], X),
        "feature 0 has whole numbers beyond 2.53",
    ),
    "a value that is NaN": (scored(NAN), "function returns nan for 24 rows"),
    "a value that is text": (scored("1"), "function returns '1'"),
    "a value beyond float64": (scored(10**400), "function returns 1000"),
    # shapes that do not fit, and arrays without values
    "halves of other shape": (lambda: measures.interval_around(torch.zeros(3), torch.zeros(4)), "half has shape"),
    "quantiles of other shape": (lambda: measures.fold_interval(POSITIVE[:2], t=torch.ones(3)), "t has shape"),
    "draws of fewer stimuli": (lambda: measures.compare(VECTORS, VECTORS, counts=COUNTS[None]), "counts has shape"),
    "no draws": (lambda: measures.compare(VECTORS, VECTORS, counts=torch.ones(0, 8)), r"counts has shape \(0, 8\)"),
    "layers without rows": (lambda: MLEM().fit(TABLE, [[]]), "Y, layer 0 has shape"),
    "a number as states": (lambda: MLEM().fit(TABLE, 3), "Y has no layers"),
    "a number as a layer": (lambda: CKA(1, 1).update([3], [X]), r"source\[0\] has shape"),
    "a layer of one axis": (lambda: CKA(1, 1).update([X[0]], [X]), r"source\[0\] has shape"),
    "states without rows": (lambda: measures.rows_of([], "token"), "states has shape"),
    "places beyond the rows": (lambda: measures.rows_of(X, "token", places=[99]), "places holds numbers"),
    "one run": (lambda: measures.crossnobis(RUN), "runs has 1 run"),
    "no counts": (lambda: measures.effective_number([]), r"counts has shape \(0,\): give 1 values or more"),
    "no documents": (lambda: measures.permuted_rows([], 1), "documents has shape"),
    "a document beyond the count": (
        lambda: measures.sum_by_document(X[0], [0, 1, 2, 4], 4),
        "documents holds 4, and count=4",
    ),
    "a negative document": (lambda: measures.sum_by_document(X[0], [0, 1, 2, -1], 4), "documents holds -1"),
    "a negative id": (lambda: measures.unigram_entropy([-1]), "tokens holds -1"),
    "no degrees of freedom": (lambda: measures.noise_covariance(X, 0), "freedom=0 must be a whole number"),
    "degrees without end": (lambda: measures.noise_covariance(X, 2**64), "freedom=1844.* must be a whole number"),
    "a list in itself as features": (lambda: MLEM().fit(endless(["a"]), X), "X contains itself"),
    # objects of another kind
    "a dictionary of groups": (lambda: mutual_knn(X, Y, 2, {"a": 1}), "groups is dict"),
    "a set of groups": (lambda: mutual_knn(X, Y, 2, {1, 2}), "groups is set"),
    "names on the device meta": (
        lambda: measures.comparable(VECTORS, "corr", torch.ones(3, device="meta")),
        "names is a tensor that is on the device meta",
    ),
    "a number as a function": (lambda: token_loss(X, 3, TOKENS), "finish=3 must be a function"),
    "a number to calibrate": (lambda: measures.calibrate(3, X, Y, GROUPS), "function=3 must be a function"),
    "a function that gives no logits": (lambda: token_loss(X, lambda x: 1, TOKENS), "finish gives int"),
    "a function of other states": (lambda: token_loss(X, nn.Linear(3, 4), TOKENS), "finish does not take states"),
    "text as a measure": (lambda: LayerMeans(1, 1, "cka"), "measure='cka' must be an object of the class LayerMeasure"),
    "a kind with a line break": (lambda: StitchModule("lin\near", 4, 4), r"kind='lin\\near' is unknown; kinds are"),
    "a pair that is not there": (lambda: measures.procrustes(moments(), (0, 1)), r"pair=\(0, 1\) is not one of"),
    "a ridge without halves": (lambda: measures.least_squares(moments(), (0, 0), None), "ridge=None is chosen over"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_what_an_argument_cannot_be_is_refused_by_name(what):
    call, message = REFUSED[what]
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        call()
    assert "\n" not in str(refused.value)


def repeated(values: Tensor, *, axis: int, as_numpy: bool) -> Tensor | np.ndarray:
    """A view of 2^40 rows or columns, all of them the first number."""
    shape = list(values.shape)
    shape[axis] = 2**40
    number = values.flatten()[:1].reshape([1] * values.ndim)
    return np.broadcast_to(number.numpy(), shape) if as_numpy else number.expand(shape)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("as_numpy", [False, True])
def test_an_array_of_more_numbers_than_there_is_memory_is_refused_at_once(name, axis, as_numpy):
    function, given = EVERY[name]
    tried = 0
    for argument, value in given.items():
        is_array = isinstance(value, Tensor) or (isinstance(value, list) and isinstance(value[0], Tensor))
        if not is_array or (name, argument, axis) == ("ResidualStates", "states", 0):  # the test makes their rows
            continue
        huge = changed(value, lambda values: repeated(values, axis=axis, as_numpy=as_numpy))
        began = time.monotonic()
        with pytest.raises(ValueError, match=r"^\w") as refused:
            function(**{**given, argument: huge})
        assert time.monotonic() - began < 10
        assert "\n" not in str(refused.value)
        assert re.search(r"shape|GB|TB|rows|features|stimuli", str(refused.value))
        tried += 1
    assert tried


HUGE = {
    "a column": (lambda: measures.mid_ranks(torch.zeros(1).expand(2**40)), r"values has shape \(1099511627776,\)"),
    "columns of a table": (lambda: cka(torch.zeros(1).expand(3, 2**40), Y[:3]), r"X has shape \(3, 1099511627776\)"),
    "three axes": (lambda: measures.crossnobis(torch.zeros(1).expand(3, 3, 2**40)), "runs has shape"),
    "one array of all layers": (lambda: rsa(torch.zeros(1).expand(2**40, 3, 3)), "layers has shape"),
    "one of several layers": (lambda: rsa([X, np.broadcast_to(X[:, :1], (N, 2**40))]), r"layers\[1\] has shape"),
    "a mask": (lambda: CKA(1, 1).update([X], [Y], mask=torch.ones(1).expand(2**40)), "mask"),
    "a range": (lambda: measures.mid_ranks(range(2**40)), "values has shape"),
    "names of groups": (lambda: mutual_knn(X, Y, 2, np.broadcast_to("a", 2**40)), "groups has shape"),
    "cells": (lambda: measures.split_half_reference(np.broadcast_to(1, (2**40,)), [X]), "cells has shape"),
    "a table of features": (lambda: MLEM().fit(np.broadcast_to(1.0, (N, 2**40)), X), "X has shape"),
    "ridges": (lambda: MLEM().set_params(alpha=np.broadcast_to(1.0, 2**40)).fit(TABLE, X), "alpha has shape"),
    "products of wide rows": (
        lambda: measures.noise_covariance(torch.zeros(2, 2**22), 1),
        r"noise_covariance needs more memory than there is for residuals of shape \(2, 4194304\), freedom=1",
    ),
    "moments of wide states": (
        lambda: moments(torch.zeros(N, 2**20)),
        r"Moments.update needs more memory than there is for sources\[0\] of shape",
    ),
    "a stitch of wide states": (
        lambda: StitchModule("linear", 2**40, 2**40),
        "StitchModule needs more memory than there is for width_in=1099511627776, width_out=1099511627776",
    ),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("what", HUGE)
def test_what_does_not_fit_in_memory_is_refused_by_its_name(what):
    call, message = HUGE[what]
    with pytest.raises(ValueError, match=f"^{message}") as refused:
        call()
    assert "\n" not in str(refused.value)


def test_a_view_that_fits_in_memory_is_computed_with():
    wide = X[:, :1].expand(N, 2**10)
    torch.testing.assert_close(cka(wide, Y), cka(wide.clone(), Y), rtol=0, atol=0)
    assert tensor_of(wide, Float, "X") is wide


@pytest.mark.parametrize("name", ["lin\near", "a\x1b[31mb", "a\rb", "a\u2028b", "a\u202eb"])
def test_a_name_with_control_characters_is_written_without_them(name):
    calls = [
        lambda: measures.distance_vectors([X, X[:3]], name=name),
        lambda: measures.distance_vectors([X / 0], name=name),
        lambda: measures.comparable(VECTORS * 0, "spearman", [name] * len(VECTORS)),
        lambda: MLEM().fit(pd.DataFrame({name: 1j * np.arange(N)}), X),
        lambda: cka(X, Y, kernel=name),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"^\w") as refused:
            call()
        assert str(refused.value).isprintable(), refused.value


K = {
    "a measure": lambda k: MutualKNN(k).of(X, Y),
    "a matrix": lambda k: MutualKNN(k).matrix([X], [Y, Y]),
    "a function": lambda k: mutual_knn(X, Y, k=k),
    "a metric": lambda k: gathered(LayerMeans(1, 1, MutualKNN(k)), [X], [Y]),
    "within groups": lambda k: mutual_knn(X, Y, k=k, groups=torch.arange(N) // 12),
    "in groups that are too small": lambda k: MutualKNN(k, RowGroups.of(torch.arange(N) // 12, 3)),
    "a Jaccard index": lambda k: jaccard(X, Y, k=k),
    "a second-order cosine": lambda k: second_order_cosine(X, Y, k=k),
}


@pytest.mark.parametrize("what", K)
@pytest.mark.parametrize("k", [N - 1, 99])
def test_too_many_neighbours_are_said_with_their_number(what, k):
    with pytest.raises(ValueError, match=rf"k={k} neighbours of a row need .*{k + 2}"):
        K[what](k)


def test_groups_in_a_list_are_the_groups_that_their_values_are():
    """NumPy would make one text of 1 and "1", and one float of whole numbers beyond 64 bits."""
    expected = torch.tensor([0, 1, 0, 1])
    for names in ([1, "1", 1, "1"], [2**70, 2**70 + 1] * 2, [2**64 - 1, 2**64 - 2] * 2, ["nan", "a"] * 2):
        assert torch.equal(tensor_of(names, Int, "groups"), expected)


def test_folds_of_any_numbers_are_split():
    numbers = torch.arange(N) % 3
    for train, test in measures.splits(fold_of=numbers + 2**62):
        assert len(test) == N // 3
        assert len(train) == N - N // 3
    assert len(list(measures.splits(fold_of=numbers * 2**61))) == 3


def test_a_function_that_is_calibrated_cannot_change_the_callers_arrays():
    states = X.clone()

    def product(x: Tensor, y: Tensor) -> Tensor:
        value = (x * y).sum()
        x.zero_()
        y.zero_()
        return value

    found = measures.calibrate(product, states, Y, range(N), permutations=2)
    assert found.value == pytest.approx(float((X * Y).sum()))
    assert torch.equal(states, X)


def test_empty_documents_are_worth_nothing():
    assert measures.effective_number([0, 0]) == 0


def test_numbers_of_every_library_are_numbers():
    expected = mutual_knn(X, Y, k=3)
    for number in (np.int64(3), np.uint8(3), torch.tensor(3), np.array(3)):
        assert mutual_knn(X, Y, k=number) == expected
    low = measures.bootstrap_interval(POSITIVE[0], COUNTS, level=np.float32(0.5)).low
    assert low == measures.bootstrap_interval(POSITIVE[0], COUNTS, level=0.5).low
    assert CKA(np.int64(1), 1).source_layers == 1
    whole = np.ma.array(X.numpy())
    assert cka(whole, Y) == cka(X, Y), "a masked array without masked values is an array"


def test_groups_of_every_byte_order_are_groups():
    expected = mutual_knn(X, Y, 2, GROUPS)
    names = np.array([f"sentence {number}" for number in GROUPS.tolist()])
    for groups in (GROUPS.numpy().astype(">f4"), names.astype(">U12"), GROUPS.numpy().astype(">M8[D]")):
        assert mutual_knn(X, Y, 2, groups) == expected


def test_a_view_whose_sign_is_still_to_change_is_read():
    torch.testing.assert_close(weighted_tau(torch._neg_view(-POSITIVE)), weighted_tau(POSITIVE))


def test_an_argument_says_which_numbers_it_takes():
    def function(count: Count, share: Level | None, either: int | str, switch: bool, mixed: float | list = 1.0) -> None:
        """Has annotations of every form."""

    fine = {"count": 2, "share": None, "either": "all", "switch": np.bool_(True), "mixed": [True]}
    assert checked_numbers(function, fine) == fine
    assert checked_numbers(function, {"share": np.float32(0.5)}) == {"share": 0.5}
    wrong = {"count": None, "share": 1, "either": True, "switch": None, "mixed": True}
    for name, value in wrong.items():
        with pytest.raises(ValueError, match=f"^{name}={value} must be "):
            checked_numbers(function, {name: value})


def test_bfloat16_and_gradients_change_no_result():
    values = torch.tensor([2.0, 1.0, 2.0, 4.0])
    assert measures.mid_ranks(values.bfloat16()).tolist() == [2.5, 1.0, 2.5, 4.0]
    cells, states = torch.arange(4).repeat_interleave(30), normal(120, 3)
    found, expected = (
        measures.split_half_reference(given, [states + 3 * cells[:, None]], splits=1).value
        for given in (cells.bfloat16(), cells)
    )
    assert found.equal(expected)
    assert measures.two_sided(values.requires_grad_(), torch.ones(4), 9).equal(
        measures.two_sided(values.detach(), torch.ones(4), 9)
    )
    assert float(measures.arc_length([1 + 1e-7])) == 0.0, "rounding may take a CKA above 1"
