"""The mean of any measure of layer pairs over batches, with intervals over documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.arguments import Count, RepetitionsOrNone, takes_arrays
from thinkalike.measures.accumulator import Accumulator
from thinkalike.measures.chance import BatchNull, chance_of
from thinkalike.measures.contract import (
    AnyMeasure,
    Batch,
    BatchRows,
    ModelPairs,
    Pair,
    States,
    joint_matrix,
)
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.measures.folds import JACKKNIFE_PARTS
from thinkalike.measures.layer_pair_estimate import (
    EstimateArguments,
    LayerPairEstimate,
    sizes_of_documents,
)
from thinkalike.measures.leave_out import (
    bias_of_documents,
    measure_within_tokens,
    sizes_of_parts,
    values_without_each_part,
)
from thinkalike.measures.rows import naming_rows
from thinkalike.measures.sample_size import (
    FEWEST_GROUPS,
    FEWEST_GROUPS_IF_BIASED,
    effective_number,
    has_interval,
)

# One batch in this many also tells how much the rows of a document depend on each other. For that
# batch the cost doubles.
BATCHES_PER_BIAS = 4

# The product of four numbers that lie within 2^-128 and 2^128 is within the range of float64.
MOST_ORDINARY_EXPONENT = 128


class LayerMeans(Accumulator):
    """The mean over batches of any measure of layer pairs, with intervals over documents.

    Each batch is compared with all its rows, and without the documents of each tenth in turn; the
    means over batches give the jackknife. Rows of one document depend on each other, which biases
    most measures. Where the number of rows matters as well, every fourth batch is also compared
    without tenths of its rows drawn at random, which tells how large that bias is; see
    `jackknife`. The null is that of the first batch, see `BatchNull`.

    Args:
        source_layers, target_layers: How many layers the source and the target have.
        conditional_on: "token" compares rows of the same token only, "none" compares all.
        kwargs: The keyword arguments of `torchmetrics.Metric`.
        measure: The measure; where it is a ratio, such as CKA, means over batches are taken before
            the ratio.
        permutations: How often documents of the target are permuted for a null, see `Chance`. 0:
            no null.
        averages_ratios: Whether a measure that is a ratio is divided in each batch, and the ratios
            averaged, instead.
    """

    # What is stored of each batch; see `gather` for which of them a measure has.
    batch_states: ClassVar[tuple[str, ...]] = (
        "values",
        "leverages",
        "used",
        "dependence",
        "null",
        "tested",
        "moved",
        "units",
    )
    moved: list[Tensor] | Tensor

    @takes_arrays
    def __init__(
        self,
        source_layers: Count,
        target_layers: Count,
        measure: AnyMeasure,
        permutations: RepetitionsOrNone = 0,
        *,
        conditional_on: str = "none",
        averages_ratios: bool = False,
        **kwargs: object,
    ):
        """Store the settings, and refuse those that the measure does not allow.

        These are "token" for a measure that compares all rows, and permutations for one that does
        not depend on which rows of both layers go together.

        `conditional_on` is "token" if rows are compared within groups of one token, or "none".
        `permutations` is how often documents are permuted for a null; 0 is no null.
        `averages_ratios` is whether a ratio, such as CKA, is averaged over batches; otherwise its
        numerators and denominators are.
        """
        super().__init__(source_layers, target_layers, conditional_on=conditional_on, **kwargs)
        if conditional_on == "token" and not measure.compares_within_groups:
            raise ValueError(
                f"conditional_on=token: {type(measure).__name__} compares all rows; "
                "leave conditional_on out, or take CKA"
            )
        if permutations and "row_permutation_of_one" in measure.invariances:
            raise ValueError(
                f"permutations={permutations}: {type(measure).__name__} does not depend on which "
                "rows of both layers go together, so that it has no null; leave permutations out"
            )
        self.measure = measure
        self.permutations = permutations
        self.averages_ratios = averages_ratios

    def check(self, source: States, target: States, groups: Tensor | None) -> None:
        """Raise a ValueError if a batch does not fit this metric, or its layers the measure.

        Args:
            source, target: The states of each layer.
            groups: The token of each state; None if the batch has no groups.
        """
        super().check(source, target, groups)
        widths = [layer.shape[-1] for layer in (*source, *target)]
        names = [f"source layer {index}" for index in range(len(source))]
        names += [f"target layer {index}" for index in range(len(target))]
        self.measure.check_widths(widths, names)

    @torch.no_grad()
    def gather(
        self,
        batch: Batch,
        metrics: Sequence[LayerMeans] = (),
        pairs_of_metrics: Sequence[Pair] = ((0, 1),),
    ) -> None:
        """Compare the layers of several models in one batch, and add the results to their metrics.

        Layers are prepared once for all pairs of models. Each metric stores the same bits and
        raises the same errors as if its `update` had been called with its two models.

        Args:
            batch: The states of the models for the same tokens.
            metrics: One metric for each pair of models, with the same measure and settings as this
                one; by default this one alone.
            pairs_of_metrics: For each metric, the indices in `batch.states` of its source and its
                target.

        Raises:
            ValueError: See `update`.
        """
        metrics = metrics or [self]
        for metric, (source, target) in zip(metrics, pairs_of_metrics, strict=True):
            metric.check(batch.states[source], batch.states[target], batch.groups)

        # Several models may have the same layers, which are compared once.
        rows, layers_of_model = batch.rows(pairs_of_metrics, self.measure.flatten)
        models = list(dict.fromkeys(layers_of_model.values()))
        index_of_model = {model: models.index(layers) for model, layers in layers_of_model.items()}
        pairs = [
            (index_of_model[source], index_of_model[target]) for source, target in pairs_of_metrics
        ]
        with_themselves = [(model, model) for pair in pairs for model in pair]
        model_pairs = ModelPairs(models, list(dict.fromkeys([*with_themselves, *pairs])))

        units: Sequence[Tensor] = []
        if self.measure.has_units:
            rows, units = rows.in_units()
        measure, groups = measure_within_tokens(self.measure, rows)
        with naming_rows(rows.name_of_row):
            layers = measure.prepared(rows.layers, rows.names, rows.order)
        nulls: dict[Pair, dict[str, Tensor]] = {}
        biases: dict[Pair, Tensor] = {}
        is_autocast_off = torch.autocast(rows.layers[0].device.type, enabled=False)
        with is_autocast_off, naming_rows(rows.name_of_row):
            values = self._values_without_parts(measure, layers, rows, model_pairs)
            if self.permutations and any(
                metric._precedes_stored_nulls(batch.number) for metric in metrics
            ):
                pairs_once = model_pairs._replace(pairs=list(dict.fromkeys(pairs)))
                null = BatchNull(measure, layers, rows, groups, pairs_once, self.permutations)
                values_of_all_rows = {pair: of_parts[0] for pair, of_parts in values.items()}
                nulls = null.of(values_of_all_rows)
            depends_on_row_count = not (measure.is_ratio or measure.is_unbiased)
            if batch.number % BATCHES_PER_BIAS == 0 and depends_on_row_count:
                biases = bias_of_documents(self.measure, layers, rows, model_pairs, values)

        for metric, (source, target), pair in zip(metrics, pairs_of_metrics, pairs, strict=True):
            layers_of_pair = (*layers_of_model[source], *layers_of_model[target])
            states = {"values": _joint_matrices(values, pair)}
            if groups:
                used = [len(groups.order), groups.row_count]  # rows in groups, and all rows
                states["used"] = torch.tensor(used, dtype=torch.float64)
            if pair in nulls:
                states["null"] = nulls[pair]["null"]
                states["tested"] = nulls[pair]["tested"]
                batch_number = torch.tensor(batch.number)
                states["moved"] = torch.stack([batch_number, nulls[pair]["moved"]])
            if biases:
                states["dependence"] = joint_matrix(biases, pair).double()
            if measure.has_leverage:
                leverages = [measure.leverage(layers[layer]).double() for layer in layers_of_pair]
                states["leverages"] = torch.stack(leverages)
            if self.measure.has_units:
                states["units"] = torch.stack([units[layer] for layer in layers_of_pair])
            metric.add(batch.number, rows.documents, **states)

    def _values_without_parts(
        self,
        measure: AnyMeasure,
        layers: Sequence[object],
        rows: BatchRows,
        model_pairs: ModelPairs,
    ) -> dict[Pair, Float[Tensor, "a _ _"]]:
        """Return the values of all rows of a batch, and then without each part of the documents.

        The first axis has a = 1 + `JACKKNIFE_PARTS` entries. If the measure is a ratio, such as
        CKA, values are its numerators.

        Args:
            measure: The measure of this batch. If rows have tokens, it only compares rows of the
                same token.
            layers: The layers as `measure` prepared them.
            rows: The rows that they were prepared from.
            model_pairs: The layers of each model, and which models are compared.
        """
        part_of_row = rows.documents % JACKKNIFE_PARTS
        if measure.leaves_out_parts:  # it has a faster way than to compare all rows again
            sizes = sizes_of_parts(part_of_row)
            return measure.compare_leaving_out_parts(layers, model_pairs, sizes)
        # The rows that remain without a part are compared anew. `measure` has the groups of all
        # rows, so for the groups of the remaining ones this takes `self.measure`, which has none.
        values_of_all = measure.compare_all(layers, model_pairs)
        without_parts = values_without_each_part(
            self.measure, part_of_row, rows, model_pairs, values_of_all
        )
        values = {}
        for pair in model_pairs.pairs:
            values_without = [without_part[pair] for without_part in without_parts]
            values[pair] = torch.stack([values_of_all[pair], *values_without])
        return values

    def _precedes_stored_nulls(self, number: int) -> bool:
        """Return whether a batch's number is below those of all batches whose null is stored.

        A null is the values after documents were permuted. Only that of the batch with the lowest
        number is used, so that it does not depend on the order in which batches come.
        """
        # An entry (1, 2) has the number of a batch with a null, and how many documents were moved.
        return all(number < int(entry[0, 0]) for entry in self.moved)

    def compute(self) -> LayerPairEstimate:
        """Return the mean over all batches so far, with intervals and the null."""
        return LayerPairEstimate(**self.estimate_arguments(self.gathered()))

    def gathered(self) -> dict[str, Tensor]:
        """Return what is stored of all batches, by name, with values in a common unit.

        A measure such as the HSIC grows with the size of the states. So that it stays within the
        range of floats, each layer was divided by its unit, a power of two, in each batch. Here
        the values are multiplied by the units again, so that batches can be averaged.

        If the unit of a layer is too large or too small for that, its values stay divided by one
        unit, the largest of all batches. If the ratios of batches are averaged, which do not
        depend on units, they stay divided by the unit of each batch.
        """
        states = super().gathered()
        if not self.measure.has_units:
            return states
        units = states["units"]  # (batches, k), a unit for each of the k layers of both models
        common_units = units if self.averages_ratios else units.amax(0, keepdim=True)
        is_extreme = common_units.log2().abs() > MOST_ORDINARY_EXPONENT
        remaining_units = common_units.where(is_extreme, 1.0)  # values stay divided by these
        # Values grow with the square of the size of each of their two layers, as HSIC does.
        factors = (units / remaining_units).square()[:, None]  # (batches, 1, k)
        states["values"] = states["values"] * factors[..., :, None] * factors[..., None, :]
        return states

    def estimate_arguments(self, states: Mapping[str, Tensor]) -> EstimateArguments:
        """Return the arguments of a `LayerPairEstimate`: values with intervals, null, and counts.

        Args:
            states: The tensors that were stored, by name, with an entry for each batch: "values",
                "documents", which has one for each row instead, and others that the measure needs.
                If there is a null by permutations, "null", "tested" and "moved"; if rows are
                compared within groups of one token, "used".
        """
        depth = self.source_layers
        # Of every two of the l source and m target layers, (l + m, l + m).
        joint = self._estimate(self.mean_values(states), states)
        across = joint[:depth, depth:]
        sizes = sizes_of_documents(states["documents"])
        arguments: EstimateArguments = {
            "across": across,
            "within_source": joint[:depth, :depth],
            "within_target": joint[depth:, depth:],
            "batches": len(states["values"]),
            "fewest_effective": self.fewest_effective,
            "documents": sizes["documents"],
            "rows": sizes["rows"],
            "effective": sizes["effective"],
        }
        if "null" in states:
            # "moved" has the number of each batch with a null, and how many of its documents were
            # permuted. Of these batches, the null of the one with the lowest number is used.
            first_batch = int(states["moved"][:, 0].argmin())
            _, documents_moved = states["moved"][first_batch]
            arguments["chance"] = chance_of(
                across,
                null=states["null"][first_batch],  # the mean values by chance, (l, m)
                tested=states["tested"][first_batch],  # what p-values compare, (a, l, m)
                documents=int(documents_moved),
                best=self.measure.best,
                sign=1 if self.measure.higher_is_closer else -1,
            )
        if "used" in states:
            # "used" has for each batch how many rows were in groups of one token, and all rows.
            used, rows = states["used"].sum(0)
            arguments["rows_used"] = float(used / rows)
        return arguments

    def replicates(self) -> Float[Tensor, "r l m"]:
        """Return the estimate of each layer pair, then its value without each part of documents.

        Only the estimates are returned, r = 1, where the documents are too few for an interval, or
        where the measure refused the rows without some part.
        """
        states = self.gathered()
        values = self.mean_values(states)  # (r, l + m, l + m): of every two layers of both models
        # The estimate is the value of all rows, less its bias if that is known.
        estimate = self._estimate(values, states).value
        joint = torch.cat([estimate[None], values[1:]])
        return joint[:, : self.source_layers, self.source_layers :]

    def mean_values(self, states: Mapping[str, Tensor]) -> Float[Tensor, "a k k"]:
        """Return the mean values over all batches, then those without each part of the documents.

        Values are of every two of the k = l + m layers of both models. Only the values of all
        documents are returned, a = 1, if the documents are too few for an interval, or if a value
        without a part is not finite, because the measure could not compare the remaining rows.

        Args:
            states: What is stored of all batches, by name: "values" (batches, 1 + parts, k, k),
                and "documents", the number of the document of each row.
        """
        documents, counts = states["documents"].unique(return_counts=True)
        indices = [0]  # of all rows; index 1 + p is without part p
        if has_interval(effective_number(counts), self.fewest_effective):
            parts_with_documents = (documents % JACKKNIFE_PARTS).unique()
            indices += (1 + parts_with_documents).tolist()
        values = states["values"][:, indices]  # (batches, a, k, k)
        if not self.measure.is_ratio:
            means = values.mean(0)
        elif self.averages_ratios:
            means = self.measure.ratios(values).mean(0)
        else:
            means = self.measure.ratios(values.mean(0))
        if means[1:].isfinite().all():
            return means
        return means[:1]

    def _estimate(self, values: Float[Tensor, "a k k"], states: Mapping[str, Tensor]) -> Estimate:
        """Return values with jackknife intervals over documents.

        Rows of one document depend on each other, which biases the values. For a measure that has
        no bias with independent rows, the jackknife computes this bias from the values without
        parts of the documents, and it is subtracted. For other measures, batches have estimated it
        with random rows, which is less certain: then it is not subtracted but widens the interval.

        Args:
            values: The values of all rows, and then without each part of the documents, of every
                two of k layers.
            states: What is stored of all batches, by name. "dependence" is the estimate with
                random rows, if the measure needs it.
        """
        expected_mean = self._expected_mean_of_replicates(values, states)
        has_random_estimate = "dependence" in states
        estimate = jackknife(values[0], values[1:], expected_mean, is_drawn=has_random_estimate)
        if estimate.uncorrected is not None and self.measure.higher_is_closer:
            # The correction must not make layers more similar than a layer is with itself, which
            # has the value `best`, unless the uncorrected value is higher.
            highest = estimate.uncorrected.clamp(min=self.measure.best)
            estimate.value = torch.minimum(estimate.value, highest)
        return estimate

    def _expected_mean_of_replicates(
        self, values: Float[Tensor, "a k k"], states: Mapping[str, Tensor]
    ) -> Float[Tensor, "k k"] | None:
        """Return the mean that the jackknife's replicates would have if rows were independent.

        A replicate is the value without one part of the documents. The jackknife subtracts this
        expected mean from the mean of the replicates. The difference tells the bias of the value
        that comes from rows of one document depending on each other. None if the expected mean is
        not known.

        Args:
            values: The values of all rows, and then without each part of the documents.
            states: What is stored of all batches, by name. "dependence", which not all measures
                need, has for every fourth batch by how much leaving out documents changed the
                values more than leaving out as many random rows.
        """
        if "dependence" in states and len(values) > 1:
            return values[1:].mean(0) - states["dependence"].mean(0)
        if self.is_unbiased:  # independent rows have the same expected value, however many remain
            return values[0]
        return None

    @property
    def fewest_effective(self) -> int:
        """How many documents of equal length the documents must be worth for an interval.

        The value of a measure that is no ratio may depend on the number of rows, so that leaving
        out documents shifts it. Then more documents are needed.
        """
        if self.measure.is_ratio:
            return FEWEST_GROUPS
        return FEWEST_GROUPS_IF_BIASED

    @property
    def is_unbiased(self) -> bool:
        """Whether the expected value of independent rows is the same for any number of rows."""
        return self.measure.is_unbiased and not self.averages_ratios


def _joint_matrices(
    values: Mapping[Pair, Float[Tensor, "a _ _"]], pair: Pair
) -> Float[Tensor, "a k k"]:
    """Return the values of every two of the k = l + m layers of two models, in float64.

    Args:
        values: For each pair of models, the values of their layers: of all rows, and then without
            each part of the documents, a = 1 + `JACKKNIFE_PARTS`.
        pair: The two models.
    """
    matrices = []
    for index in range(1 + JACKKNIFE_PARTS):
        values_at_index = {models: of_models[index] for models, of_models in values.items()}
        matrices.append(joint_matrix(values_at_index, pair))
    return torch.stack(matrices).double()
