"""Centred kernel alignment (CKA) of batches or groups of rows (Kornblith et al. 2019)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.arguments import Within, check_choice
from thinkalike.measures.centred_rows import (
    CentredRows,
    centre,
    centre_all,
    centre_groups,
    refuse_flaws,
)
from thinkalike.measures.contract import LayerMeasure, ModelPairs, Pair
from thinkalike.measures.gram_statistics import (
    all_hsics,
    block_statistics,
    dense_statistics,
    gram_products,
    left_out_statistics,
    linear_statistics,
    part_indicators,
    rbf_gram,
)
from thinkalike.measures.row_groups import FEWEST_HSIC_ROWS, RowGroups, common_dtype
from thinkalike.measures.rows import FLATTEN

# The CKA of two equal layers is 1, with what rounding in float32 adds.
MOST_CKA = 1 + 1e-6

AGGREGATES = ("ratio_of_means", "mean_of_ratios")
CHOICES = {
    "estimator": ("unbiased", "biased"),
    "kernel": ("linear", "rbf"),
    "flatten": FLATTEN,
}


def cka(
    X: Float[Tensor, "n d"],
    Y: Float[Tensor, "m e"],
    *,
    estimator: str = "unbiased",
    kernel: str = "linear",
) -> Float[Tensor, ""]:
    """Return HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)) of the Gram matrices K of X and L of Y.

    It is in [-1, 1] up to rounding, [0, 1] if biased, and differentiable. Features are centred and
    multiplied in float32, or a wider dtype, and summed in float64.

    This is the plain ratio. `thinkalike.compare(X, Y)` also subtracts its bias, which is large for
    few rows and estimated by a jackknife over stimuli. Its table has the plain ratio in the column
    `uncorrected`, or with aggregate="mean_of_ratios" in the column `value`.

    Args:
        X, Y: Features, with row i of both from stimulus i; widths and dtypes may differ.
        estimator: "unbiased" (Song et al. 2012, eq. 5), or "biased", which tends to 1 where n is
            far below the widths.
        kernel: "linear", or "rbf" with the median distance as its bandwidth.

    Raises:
        ValueError: n < 4 or n differs between the sides, a value is not finite, or a side has no
            variance.

    >>> X = torch.randn(20, 4)
    >>> round(float(cka(X, 3 * X.flip(1))), 4)  # rotated and scaled
    1.0
    """
    # `is_relative`: a single ratio needs no HSICs in the unit of the features.
    measure = CKAMeasure(estimator, kernel, is_relative=True)
    return measure.of(X, Y).to(common_dtype([X, Y]))


@dataclass(frozen=True, eq=False)
class CKAMeasure(LayerMeasure[CentredRows]):
    """CKA as a measure of layer pairs.

    HSICs of batches are averaged, and CKA is a ratio of the means.

    Attributes:
        estimator, kernel: See `cka`.
        groups: Groups of rows, within which rows are compared; None: all rows are.
        flatten: What a row is, see `rows_of`.
        is_relative: Whether HSICs are of rows of unit variance, and not in the unit of the rows.

    Raises:
        ValueError: A choice is unknown.
    """

    estimator: str = "unbiased"
    kernel: str = "linear"
    groups: RowGroups | None = None
    flatten: str = "token"
    is_relative: bool = False

    formula = "HSIC₁(K, L) / √(HSIC₁(K, K) HSIC₁(L, L)), K = XX'"
    source = "Kornblith et al. 2019, Song et al. 2012"
    value_range = (-1.0, 1.0)
    differentiable = 2
    fewest = FEWEST_HSIC_ROWS
    is_ratio = True
    has_leverage = True

    def __post_init__(self) -> None:
        """Raise a ValueError if the estimator, the kernel or `flatten` is unknown."""
        super().__post_init__()
        for name in ("estimator", "kernel", "flatten"):
            check_choice(name, getattr(self, name), CHOICES[name])

    @property
    def prepares_together(self) -> bool:
        return self.groups is None

    @property
    def has_units(self) -> bool:
        return self.kernel == "linear" and not self.is_relative

    @property
    def leaves_out_parts(self) -> bool:
        return self.kernel == "linear" and self.groups is None

    @property
    def compares_within_groups(self) -> bool:
        return self.groups is None and self.kernel == "linear" and self.flatten == "token"

    @property
    def is_unbiased(self) -> bool:
        return self.estimator == "unbiased" and self.groups is None

    def prepare(self, layer: Float[Tensor, "n d"], name: str) -> CentredRows:
        """Return the rows less their mean, or less the means of their groups, if there are any."""
        if self.groups is None:
            return centre(layer, name)
        return centre_groups(self.groups, layer, name)

    def prepare_all(
        self, layers: Float[Tensor, "l n d"], names: Sequence[str], in_place: bool
    ) -> list[CentredRows]:
        """Return the centred rows of each of l layers.

        Args:
            layers: The layers, stacked.
            names: What errors call each layer.
            in_place: Whether the memory of `layers` may be overwritten.
        """
        return centre_all(layers, names, in_place)

    def compare(self, first: CentredRows, second: CentredRows) -> Float[Tensor, ""]:
        """Return the HSIC of two prepared layers."""
        model_pairs = ModelPairs([[0], [1]], [(0, 0), (0, 1), (1, 1)])
        # That of a subclass may call `compare`.
        return CKAMeasure.compare_all(self, [first, second], model_pairs)[0, 1][0, 0]

    def reordered(self, prepared: CentredRows, order: Int[Tensor, " n"]) -> CentredRows:
        """Return a prepared layer whose row i is the former row order[i]."""
        return prepared._replace(rows=prepared.rows[order])

    def compare_all(
        self, layers: Sequence[CentredRows], model_pairs: ModelPairs
    ) -> dict[Pair, Float[Tensor, "l m"]]:
        """Return the HSIC of every two layers of compared models, from which CKA is computed.

        For models with l and m layers this is (l, m). If rows are only compared within groups, it
        is Σ_g n_g HSIC_g, where HSIC_g compares the n_g rows of group g.

        Args:
            layers: The distinct layers of all models, with centred rows.
            model_pairs: Which of these layers each model has, and which models are compared.
        """
        if self.groups is not None:
            return hsics_within(layers, model_pairs, groups=self.groups, estimator=self.estimator)
        return layer_hsics(
            layers,
            model_pairs,
            kernel=self.kernel,
            estimator=self.estimator,
            is_relative=self.is_relative,
        )

    def compare_leaving_out_parts(
        self, layers: Sequence[CentredRows], model_pairs: ModelPairs, sizes: Sequence[int]
    ) -> dict[Pair, Float[Tensor, "_ l m"]]:
        """Return the HSIC of every two layers for all rows, and then leaving out each part.

        A jackknife takes these 1 + parts values, (1 + parts, l, m) for each pair of models.

        Args:
            layers: The distinct layers of all models, with centred rows.
            model_pairs: Which of these layers each model has, and which models are compared.
            sizes: How many rows each part has; the parts follow one another.
        """
        return hsics_without_parts(layers, model_pairs, sizes, estimator=self.estimator)

    def ratios(self, numerators: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b k k"]:
        """Return the CKA of every two of k layers from their HSICs."""
        return alignment(numerators)

    def leverage(self, prepared: CentredRows) -> Float[Tensor, ""]:
        """Return the greatest share that a single row has in the variance of a layer."""
        return prepared.leverage

    def within(self, groups: RowGroups) -> CKAMeasure:
        """Return the CKA that compares rows only with rows of the same group."""
        return CKAMeasure(self.estimator, self.kernel, groups)

    def similarities(self, prepared: CentredRows) -> list[Float[Tensor, "_ _ _"]]:
        """Return for each group size s the Gram matrices of its g groups, (g, s, s).

        Each is divided by √s. The HSIC of a group divides the product of the Gram matrices of two
        layers by about s², and counts s times when groups are summed. So a product needs the
        weight 1 / s, which is 1 / √s for either of its factors.

        Args:
            prepared: A layer, with rows centred within their groups.
        """
        assert self.groups is not None  # a measure without groups is not asked
        grams = []
        for rows_of_groups in self.groups.split_by_size(prepared.rows):  # (g, s, d)
            size = rows_of_groups.shape[1]
            grams.append(rows_of_groups @ rows_of_groups.mT / size**0.5)
        return grams


def alignment(hsics: Annotated[Float[Tensor, "*b l l"], Within()]) -> Float[Tensor, "*b l l"]:
    """Return HSIC(K, L) / √(HSIC(K, K) HSIC(L, L)), the CKA of every two layers.

    It is NaN for a layer whose HSIC with itself is NaN or not above 0.

    Args:
        hsics: The HSIC of every layer with every layer, in the last two axes.
    """
    norms = hsics.diagonal(dim1=-2, dim2=-1).sqrt()
    return hsics / (norms[..., :, None] * norms[..., None, :])


def arc_length(
    ckas: Annotated[Float[Tensor, "*b l"], Within(least=-MOST_CKA, most=MOST_CKA)],
) -> Float[Tensor, "*b"]:
    """Return √Σ arccos²(CKA) over l layers, in [0, π √l] radians (Brown et al. 2023, eq. 2).

    CKA is in [-1, 1]; values beyond by rounding alone are taken for -1 and 1.
    """
    return ckas.clamp(-1, 1).arccos().square().sum(-1).sqrt()


def layer_hsics(
    layers: Sequence[CentredRows],
    model_pairs: ModelPairs,
    *,
    kernel: str,
    estimator: str,
    is_relative: bool = False,
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return the HSIC of every two layers that are compared, in float64, by pair of models.

    It is differentiable.

    Args:
        layers: The centred layers.
        model_pairs: The layers of each model, and which models are compared.
        kernel: "linear" or "rbf".
        estimator: "unbiased" or "biased".
        is_relative: Whether HSICs are those of rows that were scaled to unit variance. If not,
            HSICs of the linear kernel are in the unit of the features; those of "rbf" have none.

    Raises:
        ValueError: A layer has a value that is not finite or no variance, or, for the unbiased
            estimator, all of its rows but one are alike.
    """
    _refuse_flawed_layers(layers, model_pairs)
    rows = [layer.rows for layer in layers]
    needs_gradient = any(layer.requires_grad for layer in rows)
    if kernel == "linear" and not needs_gradient:  # faster, but without gradients
        statistics = linear_statistics(rows, model_pairs)
    elif kernel == "linear":
        statistics = dense_statistics([layer @ layer.T for layer in rows], model_pairs)
    else:
        statistics = dense_statistics([rbf_gram(layer) for layer in rows], model_pairs)

    hsics = all_hsics(statistics, estimator)
    if estimator == "unbiased":
        # A layer whose HSIC with itself is no more than rounding has no variance to compare.
        rounding = statistics.rounding(model_pairs, rows[0].dtype)
        _refuse_flat(hsics, rounding, layers, model_pairs)
    if kernel == "rbf" or is_relative:
        return hsics
    return _in_feature_units(hsics, layers, model_pairs)


def hsics_without_parts(
    layers: Sequence[CentredRows], model_pairs: ModelPairs, sizes: Sequence[int], *, estimator: str
) -> dict[Pair, Float[Tensor, "_ _ _"]]:
    """Return the linear HSIC of every two layers for all rows, and then leaving out each part.

    For each pair of models it has the shape (1 + parts, l, m). It is NaN where fewer than
    `FEWEST_HSIC_ROWS` rows remain. The unbiased HSIC of a layer with itself is also NaN where it
    may be only rounding.

    Args:
        layers: The centred layers.
        model_pairs: The layers of each model, and which models are compared.
        sizes: The sizes of the parts of the rows, which follow one another.
        estimator: "unbiased" or "biased".

    Raises:
        ValueError: A layer cannot be compared, or all of its rows but one are alike.
    """
    _refuse_flawed_layers(layers, model_pairs)
    rows = [layer.rows for layer in layers]
    products = gram_products(rows, model_pairs, sizes)
    statistics = left_out_statistics(rows, model_pairs, sizes, products)

    # How many rows there are, and how many remain without each part, (1 + parts, 1, 1).
    n = len(rows[0])
    remaining_counts = n - part_indicators(sizes, rows[0], torch.float64).sum(1)
    row_counts = torch.cat([remaining_counts.new_full((1,), n), remaining_counts])
    row_counts = row_counts[:, None, None]
    hsics = {}
    for pair, hsics_of_pair in all_hsics(statistics, estimator, rows=row_counts).items():
        hsics[pair] = hsics_of_pair.where(row_counts >= FEWEST_HSIC_ROWS, torch.nan)
    if estimator == "unbiased":
        # A bound of the rounding error of each layer's HSIC with itself, (1 + parts, l).
        rounding = statistics.rounding(model_pairs, rows[0].dtype, rows=row_counts[..., 0])
        # Entry 0 is that of all rows: there, a layer without variance is an error.
        hsics_of_all_rows = {pair: hsics_of_pair[0] for pair, hsics_of_pair in hsics.items()}
        rounding_of_all_rows = {model: bounds[0] for model, bounds in rounding.items()}
        _refuse_flat(hsics_of_all_rows, rounding_of_all_rows, layers, model_pairs)
        for model, bounds in rounding.items():
            hsics_with_itself = hsics[model, model].diagonal(dim1=-2, dim2=-1)  # a view
            hsics_with_itself.masked_fill_(hsics_with_itself <= bounds, torch.nan)
    return _in_feature_units(hsics, layers, model_pairs)


def hsics_within(
    layers: Sequence[CentredRows], model_pairs: ModelPairs, *, groups: RowGroups, estimator: str
) -> dict[Pair, Float[Tensor, "l m"]]:
    """Return Σ_g n_g HSIC_g for every two layers, where HSIC_g compares the n_g rows of group g.

    Rows of different groups are not compared, so shifting all rows of a group by the same vector
    changes nothing. The kernel is linear.

    Args:
        layers: Layers with rows centred within their groups, in the order of the groups.
        model_pairs: The layers of each model, and which models are compared.
        groups: The groups of rows.
        estimator: "unbiased" or "biased".

    Raises:
        ValueError: Nothing but rounding is left of a layer.
    """
    _refuse_flawed_layers(layers, model_pairs, "the rows of each token are the same")
    totals: dict[Pair, Tensor] = {}
    rounding: dict[int, Tensor] = {}
    start = 0
    for group_count, size in groups.counts_and_sizes:  # how many groups have this size
        stop = start + group_count * size
        rows = [layer.rows[start:stop] for layer in layers]
        statistics = block_statistics(rows, model_pairs, group_count)
        for pair, hsics in all_hsics(statistics, estimator, group_count).items():
            totals[pair] = totals.get(pair, 0) + size * hsics
        rounding_of_size = statistics.rounding(model_pairs, rows[0].dtype, group_count)
        for model, rounding_of_model in rounding_of_size.items():
            rounding[model] = rounding.get(model, 0) + size * rounding_of_model
        start = stop
    message = "given the token there is no variance but in single rows,"
    _refuse_flat(totals, rounding, layers, model_pairs, message)
    return _in_feature_units(totals, layers, model_pairs)


def _in_feature_units(
    hsics: Mapping[Pair, Tensor], layers: Sequence[CentredRows], model_pairs: ModelPairs
) -> dict[Pair, Tensor]:
    """Return the HSICs that the layers have without the scales by which their rows were divided.

    The HSIC of two layers grows with the square of each layer's scale.

    Args:
        hsics: The HSICs of the divided rows, (..., l, m) for each pair of models.
        layers: The distinct layers of all models, with the scale by which the rows of each were
            divided.
        model_pairs: Which of these layers each model has.
    """
    scales = model_pairs.by_model([layer.scale for layer in layers])
    squares = [scales_of_model.square() for scales_of_model in scales]
    return {
        (source, target): hsics_of_pair * torch.outer(squares[source], squares[target])
        for (source, target), hsics_of_pair in hsics.items()
    }


def _refuse_flawed_layers(
    layers: Sequence[CentredRows], model_pairs: ModelPairs, alike: str = "all rows are the same"
) -> None:
    """Raise a ValueError if a layer is not finite or has no variance.

    Layers are checked only where some model is compared with itself. Otherwise the rows were
    permuted for a null, and their layers have been checked before.

    Args:
        layers: The centred layers.
        model_pairs: Which models are compared.
        alike: How the error says that a layer has no variance.
    """
    if any(source == target for source, target in model_pairs.pairs):
        refuse_flaws(layers, alike)


def _refuse_flat(
    hsics: Mapping[Pair, Tensor],
    rounding: Mapping[int, Tensor],
    layers: Sequence[CentredRows],
    model_pairs: ModelPairs,
    message: str = "no variance but in one row, which the unbiased estimator cannot see,",
) -> None:
    """Raise a ValueError for the first layer whose HSIC with itself may be only rounding.

    CKA divides by the root of this HSIC.

    Args:
        hsics: The HSICs of all layers, by pair of models.
        rounding: For each model that is compared with itself, a bound of the rounding error of the
            HSIC of each of its layers with itself.
        layers: The distinct layers of all models, whose names errors use.
        model_pairs: Which of these layers each model has.
        message: What the error says that the layer has, before "or too little for" its dtype.
    """
    for model, rounding_of_layers in rounding.items():
        hsic_with_itself = hsics[model, model].diagonal()
        is_flat = (hsic_with_itself <= rounding_of_layers).tolist()
        for layer, layer_is_flat in zip(model_pairs.layers_of_model[model], is_flat, strict=True):
            if layer_is_flat:
                dtype = layers[layer].rows.dtype
                raise ValueError(f"{layers[layer].name}: {message} or too little for {dtype}")
