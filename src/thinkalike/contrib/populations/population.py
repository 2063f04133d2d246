"""measure=population: identity stitches and CKA of all pairs of classifiers.

Source: Brown et al. 2023, section 4.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import ClassVar

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from thinkalike.config import RUNS, ModelConfig, settings_of
from thinkalike.config.groups import with_changes
from thinkalike.contrib.populations.all_stitches import stitched_members
from thinkalike.contrib.populations.class_losses import check_labels
from thinkalike.contrib.populations.config import PopulationJob, PopulationMeasureConfig
from thinkalike.contrib.populations.encoding import EncodedPairs, encode_pairs, padded_batches
from thinkalike.contrib.populations.group_means import (
    Grouped,
    flips,
    grouped,
    population_penalties,
)
from thinkalike.contrib.populations.identity_stitches import IdentityStitches, check_same_shape
from thinkalike.contrib.populations.member_likeness import likeness_of_members
from thinkalike.contrib.populations.members import (
    Member,
    challenge_pairs_by_use,
    count_members,
    member_shape,
    members_of,
)
from thinkalike.contrib.populations.pair_sets import (
    TOKENS_PER_PAIR,
    Side,
    count_tokens,
    read_pairs,
)
from thinkalike.contrib.populations.pairs import MNLI, Pairs
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.errors import ConfigError, ModelError
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.families import check_models
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span
from thinkalike.store import Headline, Result

PAIRS_CHECKED = 300  # that the order of each model's classes is checked on


class Population(
    Instrument[PopulationJob],
    kind="population",
    version=3,
    config=PopulationJob,
    reads=("measure", "pairs", "population", "seed"),
):
    """Stitches every two members at every cut, and compares every two at every layer.

    It reads the pairs of `measure.side`. Its arrays are by example or batch: losses in nats, the
    predicted class and whether it is right (source, target, cut, pair), CKA (source, target,
    layer) and its HSICs.
    """

    needs_store: ClassVar[bool] = True  # for the jobs that fine-tune members
    is_shared: ClassVar[bool] = True

    def settings_read(self, config: PopulationJob) -> frozenset[str]:
        """Return the names of the settings that apply: also those of how the members run."""
        return super().settings_read(config) | {f"model.{name}" for name in RUNS}

    def inputs(self, config: PopulationJob) -> Mapping[str, Pairs]:
        """Return the pairs of sentences on which the classifiers of a population are compared.

        They are held-out pairs ("report") or the challenge, pairs that a heuristic gets wrong.
        Pairs of the challenge that served to select the groups are left out.
        """
        # A device that does not exist is refused before members are fine-tuned.
        check_models({"model": config.model})
        side = config.measure_as(PopulationMeasureConfig).side
        pairs = read_pairs(config.pairs, side)
        if side == "challenge":
            _, pairs = challenge_pairs_by_use(config, pairs)
        return {"pairs": pairs}

    def prepare(self, config: PopulationJob) -> Mapping[str, Member | str]:
        """Return the members of the population by name, after fine-tuning those that are missing.

        If the user set how members run (dtype or context), there is a further entry, a text.

        Raises:
            ConfigError: Two members have the same name.
        """
        stated_members = members_of(config)
        members = [
            member._replace(config=with_run_settings(member.config, config))
            for member in stated_members
        ]
        for name, count in Counter(member.name for member in members).items():
            if count > 1:
                raise ConfigError(f"population={config.population.name} names {name} twice")

        # These settings must be part of the key of the result, as they change its numbers.
        changes = set()
        for before, now in zip(stated_members, members, strict=True):
            for setting in ("dtype", "context"):
                value = getattr(now.config, setting)
                if value != getattr(before.config, setting):
                    changes.add(f"{setting}={value}")
        prepared: dict[str, Member | str] = {}
        if changes:
            prepared["members run with"] = ", ".join(sorted(changes))
        for member in members:
            prepared[member.name] = member
        return prepared

    def models_of(self, config: PopulationJob) -> dict[str, ModelConfig]:
        """Return one model that stands for all members, as they have the same shape."""
        return {"member": with_run_settings(member_shape(config), config)}

    def model_passes(self, config: PopulationJob, shapes: Shapes) -> list[Passes]:
        """Return the forward passes of all stitches and of CKA, to estimate the job's time.

        Members that must be fine-tuned first are not counted. An identity stitch runs the blocks
        of the source up to a cut, and then those of the target. Each of m² pairs of members runs
        the target's blocks after each of L + 1 cuts, half of all blocks on average: m² (L + 1) / 2
        passes. Each source runs once: m passes.
        """
        measure = config.measure_as(PopulationMeasureConfig)
        shape = shapes["member"]
        n_members = count_members(config)
        stitch_tokens = count_tokens(config.pairs, measure.side)
        cka_tokens = stitch_tokens
        if measure.cka_pairs is not None:
            cka_tokens = min(TOKENS_PER_PAIR * float(measure.cka_pairs), stitch_tokens)
        n_stitch_passes = n_members**2 * (shape.layers + 1) / 2 + n_members
        return [
            shape.passes(
                "stitches", stitch_tokens, TOKENS_PER_PAIR, n_stitch_passes, with_logits=False
            ),
            shape.passes("CKA", cka_tokens, TOKENS_PER_PAIR, n_members, with_logits=False),
        ]

    def bytes_beside_models(self, config: PopulationJob, shapes: Shapes) -> float:
        """Return the bytes of the weights of all members but the one of `models_of`."""
        return (count_members(config) - 1) * shapes["member"].bytes

    def run(self, config: PopulationJob, work: Work) -> Outcome:
        """Compare all members, each with each, by identity stitches and by CKA.

        The result has a row for each source, target and cut.
        """
        measure = config.measure_as(PopulationMeasureConfig)
        pairs = work.input("pairs", Pairs)
        members = [item for item in work.inputs.values() if isinstance(item, Member)]
        with work.phase("loading"):
            models = _load_members(members, config, pairs)
        encoded = _encode(pairs, models)

        # CKA comes first, as it is quick and may be refused. One process computes it.
        if work.processes.rank == 0:
            likeness = likeness_of_members(models, encoded, measure)
        stitches = stitched_members(models, encoded, pairs, measure, work)
        correct = stitches.predicted == pairs.labels

        table = _stitch_table(members, stitches, correct)
        alone = table[table["source"] == table["target"]]
        accuracy_of_group = alone.groupby("group_of_source")["accuracy"].mean()
        groups = dict.fromkeys(member.group for member in members)
        arrays = {
            "losses": stitches.losses.float(),
            "predicted": stitches.predicted,
            "correct": correct,
            "cka": likeness.value,
            "hsics": likeness.hsics,
        }
        inputs = {}
        for name, item in work.inputs.items():
            inputs[name] = item if isinstance(item, str) else item.fingerprint()
        facts_of_pairs = {
            "source": pairs.source,
            "count": len(pairs),
            "truncated": encoded.truncated,
            **inputs,
        }
        layers = range(models[0].n_layers)
        return Outcome(
            table,
            {f"accuracy_{group}": float(accuracy_of_group[group]) for group in groups},
            {name: values.numpy() for name, values in arrays.items()},
            {"cka": _long_table(members, layers, "layer", {"value": likeness.value})},
            models=[model.describe() for model in models],
            facts={"pairs": facts_of_pairs, "cka": likeness.read},
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return the share of flipped predictions between groups, and within groups.

        A flip is a pair of sentences for which a stitched model predicts a different class than
        its target. Both shares are taken at the cut where the share between groups is largest.
        """
        flipped = _means_by_quantity(result)["flips"]
        cut = int(flipped.between.value.argmax())
        headlines = []
        for kind, estimate in (("between", flipped.between), ("within", flipped.within)):
            value, low, high = (float(number) for number in estimate[cut])
            headlines.append(Headline.with_ends(f"flips_{kind}_groups", value, low, high))
        return headlines

    def show(self, result: Result) -> None:
        """Print the means within and between groups by cut, and where stitches flip most labels.

        A cut is the last block of the source in an identity stitch, or -1 for its embedding alone.
        CKA compares the layers after the same block.
        """
        means = _means_by_quantity(result)
        n_cuts = len(means["flips"].between.value)
        rows = few(n_cuts)  # the indices of some cuts, evenly spaced, if there are too many
        columns = []
        for name, quantity in means.items():
            for kind, estimate in (("within", quantity.within), ("between", quantity.between)):
                # The first cut is -1, where there is no layer and no CKA.
                n_empty = n_cuts - len(estimate.value)
                cells = [""] * n_empty + [f"{value:.2f}" for value in estimate.value]
                columns.append(Column(f"{name} {kind}", [cells[row] for row in rows]))
        cut_column = number_column("cut", [row - 1 for row in rows])
        title = "mean over pairs of models within a group, and between groups"
        show_table(Table(title, [cut_column, *columns]))

        flipped = means["flips"]
        cut = int(flipped.between.value.argmax())  # an index; the cut of index 0 is -1
        between, within = (
            span(estimate.value[cut], estimate.low[cut], estimate.high[cut], ".2f")
            for estimate in (flipped.between, flipped.within)
        )
        show_text(
            f"Stitches flip most labels at cut {cut - 1}: "
            f"{between} between groups, {within} within."
        )


def _means_by_quantity(result: Result) -> dict[str, Grouped]:
    """Return means of lost accuracy, flips and CKA within and between groups of models.

    A flip is a pair of sentences for which a stitched model predicts a different class than its
    target. Each mean has one value for each cut (the last block of the source in a stitch), or,
    for CKA, for each layer.
    """
    groups = list(result.details.drop_duplicates("source")["group_of_source"])
    correct = torch.from_numpy(result.arrays["correct"])
    predicted = torch.from_numpy(result.arrays["predicted"])
    values = {
        "accuracy penalty": population_penalties(correct.double().mean(-1)),
        "flips": flips(predicted).mean(-1),
        "CKA": torch.from_numpy(result.arrays["cka"]),
    }
    return {name: grouped(values_of_pairs, groups) for name, values_of_pairs in values.items()}


def with_run_settings(member: ModelConfig, config: PopulationJob) -> ModelConfig:
    """Return a member with the dtype, device and context that the user set for `model`.

    If the user named a model, its settings are not for the members, and the member is unchanged.
    """
    if config.model.name:
        return member
    chosen = {key: value for key, value in settings_of(config.model).items() if key in RUNS}
    return with_changes(member, chosen)


def _load_members(
    members: Sequence[Member], config: PopulationJob, pairs: Pairs
) -> list[FrozenModel]:
    """Load the classifiers, and check the order of their classes on pairs of sentences.

    Raises:
        ModelError: A model is no classifier, or its classes are in another order than it says.
    """
    models = [load_model(member.config) for member in members]
    for model in models:
        if not model.classes:
            raise ModelError(
                f"{model.name} is no classifier; a population is of classifiers of pairs"
            )
        check_same_tokenizer(models[0], model)
    check_same_shape(models)

    # Three classes (MNLI) make a wrong order visible, so models of three classes are checked on
    # held-out pairs ("report"). Models of two classes (HANS) are checked on the challenge.
    if pairs.classes != MNLI:
        side: Side = "challenge"
        if len(models[0].classes) == len(MNLI):
            side = "report"
        pairs = read_pairs(config.pairs, side)
    sample = pairs.sample(min(PAIRS_CHECKED, len(pairs)), config.seed)
    batch_size = config.measure_as(PopulationMeasureConfig).batch
    sample_batches = list(padded_batches(_encode(sample, models), batch_size))
    for model in models:
        logits = torch.empty(len(sample), len(model.classes), dtype=torch.float64)
        for batch in sample_batches:
            logits_of_batch = model.full(batch.tokens, batch.mask.long(), batch.types)
            logits[batch.rows] = logits_of_batch.double().cpu()
        check_labels(logits, sample.labels, model.classes, sample.classes, name=model.name)
    return models


def _encode(pairs: Pairs, models: Sequence[FrozenModel]) -> EncodedPairs:
    """Return the token ids of pairs, truncated to the shortest context of the models.

    All models have the same tokenizer.
    """
    return encode_pairs(pairs, models[0].tokenizer, min(model.context for model in models))


def _stitch_table(
    members: Sequence[Member], stitches: IdentityStitches, correct: Bool[Tensor, "m m c n"]
) -> pd.DataFrame:
    """Return the table of identity stitches: a row for each source, target and cut.

    A cut is the last block of the source in the stitch, or -1 for its embedding alone; the
    target's later blocks follow. The penalties are the target's own accuracy minus that of the
    stitch, and the loss of the stitch minus the target's own. Flips are the share of predictions,
    in [0, 1], that differ from the target's own.

    Args:
        members: The m models.
        stitches: The losses and predictions of all stitches.
        correct: Whether each prediction is right, by source, target, cut and pair of sentences.
    """
    accuracy = correct.double().mean(-1)
    loss = stitches.losses.mean(-1)
    values = {
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_penalty": population_penalties(accuracy),
        "loss_penalty": -population_penalties(loss),
        "flips": flips(stitches.predicted).mean(-1),
    }
    n_cuts = correct.shape[2]
    cuts = range(-1, n_cuts - 1)  # the embedding (-1), and then each block
    return _long_table(members, cuts, "cut", values)


def _long_table(
    members: Sequence[Member], depths: range, depth_column: str, values: dict[str, Tensor]
) -> pd.DataFrame:
    """Return a table with one row for each source, target and depth.

    Args:
        members: The m models.
        depths: The numbers of the cuts, or of the layers.
        depth_column: The name of the column of the depths.
        values: The values (m, m, depths) of each further column, by its name.
    """
    rows = []
    for source, target, depth in itertools.product(members, members, depths):
        rows.append((source.name, target.name, source.group, target.group, depth))
    columns = ["source", "target", "group_of_source", "group_of_target", depth_column]
    table = pd.DataFrame(rows, columns=columns)
    return table.assign(**{name: value.flatten().numpy() for name, value in values.items()})
