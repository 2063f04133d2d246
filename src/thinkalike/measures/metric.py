"""CKA of all layer pairs of two models, gathered batch by batch, as a torchmetrics metric."""

from __future__ import annotations

from typing import ClassVar, Unpack

import torch
from jaxtyping import Float
from torch import Tensor
from torchmetrics import Metric

from thinkalike.arguments import Count, RepetitionsOrNone, check_choice, shown, takes_arrays
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.kernel_alignment import AGGREGATES, CKAMeasure, alignment, arc_length
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.measures.layer_pair_estimate import EstimateArguments, LayerPairEstimate


class CKAResult(LayerPairEstimate):
    """CKA between l layers of a source and m of a target, with 95 % jackknife intervals.

    Intervals are over documents.

    Attributes:
        leverage_source, leverage_target: The largest share of each layer's variance that a single
            row of any batch decides, (l,) and (m,).
        hsics: The HSICs of each batch, in the order of their numbers, (b, k, k) with k = l + m.
        without: The value without each part of the documents, (p, l, m). p is 0 where there is no
            interval.
        aggregate: How batches are combined: "ratio_of_means" or "mean_of_ratios".
        is_unbiased: Whether the bias of rows of one document is subtracted, see `jackknife`.
    """

    label: ClassVar[str] = "CKA"

    def __init__(
        self,
        leverages: Tensor,
        hsics: Tensor,
        without: Tensor,
        aggregate: str,
        is_unbiased: bool,
        **estimate_arguments: Unpack[EstimateArguments],
    ):
        """Store the CKA of the layer pairs with its intervals, and what only CKA has.

        Args:
            leverages: For each layer, the share of its variance that is due to the row farthest
                from the mean, the largest share in any batch. The l source layers come first, then
                the m target layers, (l + m,). A share near 1 means that one row decides the CKA.
            hsics: The HSICs of each batch, of every two of the l + m layers, (b, l + m, l + m).
            without: The CKA computed again without each of p parts of the documents in turn,
                (p, l, m). The jackknife computes the intervals from these values.
            aggregate: How batches are combined: "ratio_of_means" or "mean_of_ratios".
            is_unbiased: Whether a bias is subtracted that arises because rows of one document
                depend on each other. It can be told from `without` only if the estimator of CKA
                has no further bias, that is, if it is right on average for independent rows.
            estimate_arguments: The CKA with its intervals, the number of batches, and what else
                every measure of layer pairs has.
        """
        super().__init__(**estimate_arguments)
        n_source_layers = len(self.value)
        self.leverage_source = leverages[:n_source_layers]
        self.leverage_target = leverages[n_source_layers:]
        self.hsics = hsics
        self.without = without
        self.aggregate = aggregate
        self.is_unbiased = is_unbiased

    def difference(self, first: tuple[int, int], second: tuple[int, int]) -> Estimate:
        """Return the CKA of one layer pair minus that of another, with a jackknife interval.

        The difference is taken in each jackknife replicate, so that what both pairs share by their
        documents cancels.

        Args:
            first, second: The source layer and the target layer of each pair.

        Raises:
            ValueError: One of them is not a pair of layers of these models.
        """
        self._check_layer_pair("first", first)
        self._check_layer_pair("second", second)
        source, target = first
        other_source, other_target = second
        # `_interval` subtracts the bias, so it takes values that still have it.
        value = self.with_bias[source, target] - self.with_bias[other_source, other_target]
        replicates = self.without[:, source, target] - self.without[:, other_source, other_target]
        return self._interval(value, replicates)

    def _check_layer_pair(self, name: str, pair: object) -> None:
        """Raise a ValueError unless `pair` is the numbers of a source layer and a target layer.

        Args:
            name: What the error calls the argument.
            pair: What a user gave.
        """
        sources, targets = self.value.shape
        is_known = False
        if isinstance(pair, list | tuple) and len(pair) == 2:
            is_known = pair[0] in range(sources) and pair[1] in range(targets)
        if not is_known:
            raise ValueError(
                f"{name}={shown(pair)} must be a source layer below {sources} and a target layer "
                f"below {targets}"
            )

    @property
    def clipped(self) -> int:
        """How many corresponding layers have a CKA outside [-1, 1], by rounding alone."""
        return int((self.with_bias.diagonal().abs() > 1).sum())

    def distance(self) -> Estimate:
        """Return the distance √Σ arccos²(CKA) over the pairs of layers i and i, in radians.

        Raises:
            ValueError: The models have different numbers of layers.
        """
        depths = self.value.shape
        if depths[0] != depths[1]:
            raise ValueError(
                f"the distance pairs up layers of equally deep models, not of {tuple(depths)} "
                "layers"
            )
        # `_interval` subtracts the bias, so it takes values that still have it.
        value = self.with_bias.diagonal(dim1=-2, dim2=-1)  # layer i with layer i
        replicates = self.without.diagonal(dim1=-2, dim2=-1)  # without each part of the documents
        return self._interval(arc_length(value), arc_length(replicates))

    def _interval(
        self, value: Float[Tensor, "*s"], replicates: Float[Tensor, " p *s"]
    ) -> Estimate:
        """Return a value with its jackknife interval over documents, and without its bias.

        The bias is that which rows of one document cause by depending on each other. It can only
        be told from the replicates, and subtracted, if the estimator is otherwise unbiased.

        Args:
            value: The value of all documents.
            replicates: The value without each of p parts of the documents.
        """
        expected_mean_of_replicates = None
        if self.is_unbiased:
            # With independent rows, values with and without a part would be equal on average.
            expected_mean_of_replicates = value
        return jackknife(value, replicates, expected_mean_of_replicates)

    def convergence(self) -> Float[Tensor, "b l m"]:
        """Return the CKA of the first batch, of the first two batches, and so on to all b.

        Entry i shows how far the value has settled after i + 1 batches. The bias of dependent rows
        is not subtracted.
        """
        depth = len(self.value)  # l
        batch_numbers = torch.arange(1, len(self.hsics) + 1, device=self.hsics.device)
        batch_counts = batch_numbers.view(-1, 1, 1)
        # `hsics` are of every two of the l + m layers of both models, (b, l + m, l + m).
        if self.aggregate == "ratio_of_means":
            joint = alignment(self.hsics.cumsum(0) / batch_counts)
        else:
            joint = alignment(self.hsics).cumsum(0) / batch_counts
        return joint[..., :depth, depth:]


class CKA(LayerMeans):
    """Minibatch CKA of every layer of a source with every layer of a target (Nguyen et al. 2021).

    Each `update` takes one batch of n >= 4 rows from both models and keeps its HSICs in float64,
    some kB. The order of the batches does not matter, and processes may share them. Products of
    bfloat16 and float16 states are taken in float32. Rounding states to bfloat16 changes CKA by
    1e-5 for benign states, 2e-4 with one massive token, and 1e-3 where a few dimensions have an
    offset of 300 (1024 rows of width 256).

    Args:
        source_layers, target_layers, kwargs: See `Accumulator`.
        estimator, kernel: See `cka`.
        aggregate: "ratio_of_means", Σ HSIC / √(Σ HSIC Σ HSIC) over batches, or "mean_of_ratios",
            the mean of each batch's CKA (Brown et al. 2023), which is biased if batches have few
            rows.
        flatten: What a row is, see `rows_of` (Brown et al. 2023, footnote 6).
        conditional_on: "token" compares rows within groups of one token, each of at least 4 rows:
            sums over groups, weighted by their rows, come before the ratio. "none" compares all
            rows.
        permutations: For a null, see `LayerMeans`.

    >>> metric, states = CKA(1, 1), torch.randn(20, 4)
    >>> metric.update([states], [2 * states])
    >>> round(metric.compute().value.item(), 4)
    1.0
    """

    higher_is_better = True

    @takes_arrays
    def __init__(
        self,
        source_layers: Count,
        target_layers: Count,
        *,
        estimator: str = "unbiased",
        aggregate: str = "ratio_of_means",
        kernel: str = "linear",
        flatten: str = "token",
        conditional_on: str = "none",
        permutations: RepetitionsOrNone = 0,
        **kwargs: object,
    ):
        """Check the choices, and make a metric of means over batches with CKA as its measure.

        `estimator` is "unbiased" or "biased", `kernel` "linear" or "rbf", `aggregate`
        "ratio_of_means" or "mean_of_ratios" of the batches, and `flatten` what a row is ("token",
        "sample" or "mean" of a sequence). `conditional_on` is "token" if rows are compared within
        groups of one token, and `permutations` how often documents are permuted for a null.
        """
        check_choice("aggregate", aggregate, AGGREGATES)
        options = {"estimator": estimator, "kernel": kernel, "flatten": flatten}
        measure = CKAMeasure(estimator, kernel, flatten=flatten)
        if conditional_on == "token" and not measure.compares_within_groups:
            needed = {"kernel": "linear", "flatten": "token"}
            wrong = [f"{name}={options[name]}" for name in needed if options[name] != needed[name]]
            raise ValueError(
                "conditional_on=token compares single tokens by kernel=linear: "
                f"leave out {' and '.join(wrong)}, or conditional_on"
            )
        super().__init__(
            source_layers,
            target_layers,
            measure,
            permutations,
            conditional_on=conditional_on,
            averages_ratios=aggregate == "mean_of_ratios",
            **kwargs,
        )
        self.aggregate = aggregate
        self.options = {**options, "conditional_on": conditional_on, "permutations": permutations}

    def compute(self) -> CKAResult:
        """Return the CKA of all batches so far, of all processes, with intervals."""
        states = self.gathered()
        depth = self.source_layers
        # The HSICs of every two layers, (batches, 1 + parts, l + m, l + m): of all rows first, and
        # then without each part of the documents.
        hsics_of_batches = states["values"][:, 0]
        # CKA in the same order, (1 + parts, l + m, l + m), of which the upper right block is
        # across the models.
        ckas = self.mean_values(states)
        without_parts = ckas[1:, :depth, depth:]
        return CKAResult(
            **self.estimate_arguments(states),
            leverages=states["leverages"].amax(0),
            hsics=hsics_of_batches,
            without=without_parts,
            aggregate=self.aggregate,
            is_unbiased=self.is_unbiased,
        )

    def merge_state(self, incoming_state: dict[str, object] | Metric) -> None:
        """Add the batches of another metric, or of its state, to this one.

        Raises:
            ValueError: The other metric has different options, such as another kernel.
        """
        if isinstance(incoming_state, CKA) and incoming_state.options != self.options:
            raise ValueError(
                f"batches of {incoming_state.options} cannot be added to those of {self.options}"
            )
        super().merge_state(incoming_state)
