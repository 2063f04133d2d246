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

from thinkalike.config import RUN_SETTINGS, ModelConfig, settings_of
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
from thinkalike.contrib.populations.member_similarity import similarity_of_members
from thinkalike.contrib.populations.members import (
    Member,
    challenge_pairs_by_use,
    count_members,
    member_shape,
    members_of,
)
from thinkalike.contrib.populations.pair_sets import (
    TOKENS_PER_PAIR,
    PairSplit,
    count_tokens,
    read_pairs,
)
from thinkalike.contrib.populations.pairs import MNLI_CLASSES, Pairs
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.errors import ConfigError, ModelError
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.families import check_device_and_family
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span
from thinkalike.store import Headline, Result

PAIRS_CHECKED = 300  # the order of each model's classes is checked on this many pairs
FIRST_CUT = -1  # after the source's embedding; cut n is after its block n


class Population(
    Instrument[PopulationJob],
    kind="population",
    version=3,
    config=PopulationJob,
    reads=("measure", "pairs", "population", "seed"),
):
    """Stitches every two members at every cut, and compares every two at every layer.

    It reads the pairs of sentences in the split `measure.side`: "report" (held-out pairs) or
    "challenge". Its arrays are by example or batch: losses in nats, the predicted class and
    whether it is right (source, target, cut, pair), CKA (source, target, layer) and its HSICs.
    """

    needs_store: ClassVar[bool] = True  # for the jobs that fine-tune members
    is_shared: ClassVar[bool] = True

    def settings_read(self, config: PopulationJob) -> frozenset[str]:
        """Return the names of the settings that apply to this job.

        The job reads no model of its own, but the settings that say how a model runs, such as
        `model.dtype`, apply to the classifiers of the population.
        """
        return super().settings_read(config) | {f"model.{name}" for name in RUN_SETTINGS}

    def inputs(self, config: PopulationJob) -> Mapping[str, Pairs]:
        """Return the pairs of sentences on which the classifiers of a population are compared.

        The setting `measure.side` says which: with "report" they are held-out pairs, and with
        "challenge" a challenge set, which tests whether a classifier relies on a heuristic such as
        word overlap. If the classifiers were divided into groups by their accuracy on some
        challenge pairs, these pairs are left out.
        """
        # A device that does not exist is refused before classifiers are fine-tuned.
        check_device_and_family("model", config.model)
        # The setting is called `side`, and its values are the names of splits of the pairs.
        split = config.measure_as(PopulationMeasureConfig).side
        pairs = read_pairs(config.pairs, split)
        if split == "challenge":
            pairs = challenge_pairs_by_use(config, pairs).to_compare
        return {"pairs": pairs}

    def prepare(self, config: PopulationJob) -> Mapping[str, Member | str]:
        """Return the classifiers (members) of the population, by name.

        `members_of` fine-tunes those that are not stored yet. Everything that is returned here
        enters the hash of the job. A dtype or context that the user chose changes the job's
        numbers, so if it differs from that of the classifiers, it is returned as well, as an entry
        "members run with" whose value is a text such as "dtype=float32".

        Raises:
            ConfigError: Two classifiers have the same name.
        """
        members = members_of(config)
        for name, count in Counter(member.name for member in members).items():
            if count > 1:
                raise ConfigError(f"population={config.population.name} names {name} twice")

        changed_settings = set()
        prepared_members: dict[str, Member | str] = {}
        for member in members:
            config_to_run = with_run_settings(member.config, config)
            for setting in ("dtype", "context"):
                value = getattr(config_to_run, setting)
                if value != getattr(member.config, setting):
                    changed_settings.add(f"{setting}={value}")
            prepared_members[member.name] = member._replace(config=config_to_run)
        if not changed_settings:
            return prepared_members
        return {"members run with": ", ".join(sorted(changed_settings)), **prepared_members}

    def models_of(self, config: PopulationJob) -> dict[str, ModelConfig]:
        """Return one model that stands for all classifiers, which have the same shape."""
        return {"member": with_run_settings(member_shape(config), config)}

    def model_passes(self, config: PopulationJob, shapes: Shapes) -> list[Passes]:
        """Return the forward passes of all stitches and of CKA, to estimate the job's time.

        There are m classifiers of L blocks. An identity stitch runs the first blocks of one of
        them, the source, up to a cut, and then the later blocks of another, the target. Counted in
        passes through all L blocks, stitches take

        - m passes of sources, each of which runs once and serves all cuts and targets;
        - m² (L + 1) / 2 passes of targets. For each of the m² pairs of a source and a target there
          are L + 1 cuts, and the target runs half of its blocks on average.

        CKA compares the states of whole classifiers, each of which runs once: m passes. The
        fine-tuning of missing classifiers is not counted.
        """
        measure = config.measure_as(PopulationMeasureConfig)
        shape = shapes["member"]
        n_members = count_members(config)
        # `side` is the name of the set of pairs of sentences: "report" or "challenge".
        stitch_tokens = count_tokens(config.pairs, measure.side)
        cka_tokens = stitch_tokens
        if measure.cka_pairs is not None:
            cka_tokens = min(TOKENS_PER_PAIR * float(measure.cka_pairs), stitch_tokens)
        n_target_passes = n_members**2 * (shape.layers + 1) / 2
        n_stitch_passes = n_members + n_target_passes
        return [
            shape.passes(
                "stitches",
                stitch_tokens,
                TOKENS_PER_PAIR,
                times=n_stitch_passes,
                with_logits=False,
            ),
            shape.passes("CKA", cka_tokens, TOKENS_PER_PAIR, times=n_members, with_logits=False),
        ]

    def bytes_beside_models(self, config: PopulationJob, shapes: Shapes) -> float:
        """Return the bytes of the weights of all classifiers but one, which is counted already."""
        return (count_members(config) - 1) * shapes["member"].bytes

    def run(self, config: PopulationJob, work: Work) -> Outcome:
        """Compare all classifiers, each with each, by identity stitches and by CKA.

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
            similarity = similarity_of_members(models, encoded, measure)
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
            "cka": similarity.value,
            "hsics": similarity.hsics,
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
            {"cka": _long_table(members, layers, "layer", {"value": similarity.value})},
            models=[model.describe() for model in models],
            facts={"pairs": facts_of_pairs, "cka": similarity.read},
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return the share of flipped predictions between groups, and within groups.

        A stitched classifier runs the first blocks of a source, and then the later blocks of a
        target of the same group of classifiers ("within") or of a different one ("between"). A
        prediction is flipped if it differs from that of the target alone. There is a share for
        each number of blocks of the source (cut). Both headlines are of the cut with the largest
        share between groups, and have intervals.
        """
        flipped = _means_by_quantity(result)["flips"]  # estimates (value, low, high) for each cut
        cut_index = int(flipped.between.value.argmax())
        headlines = []
        for kind, estimate in (("between", flipped.between), ("within", flipped.within)):
            value, low, high = (float(number) for number in estimate[cut_index])
            headlines.append(Headline.with_ends(f"flips_{kind}_groups", value, low, high))
        return headlines

    def show(self, result: Result) -> None:
        """Print the means within and between groups by cut, and where stitches flip most labels.

        The means are over pairs of classifiers, of one group or of two. A stitched classifier runs
        the blocks of a source up to a cut, and then the later blocks of a target. The cut is the
        number of the source's last block, or -1 if only its embedding runs. It flips a label if it
        predicts a different class than the target alone.
        """
        means = _means_by_quantity(result)
        show_table(_table_of_means_by_cut(means))

        flipped = means["flips"]
        cut_index = int(flipped.between.value.argmax())
        value, low, high = flipped.between[cut_index]
        between = span(value, low, high, ".2f")
        value, low, high = flipped.within[cut_index]
        within = span(value, low, high, ".2f")
        show_text(
            f"Stitches flip most labels at cut {FIRST_CUT + cut_index}: "
            f"{between} between groups, {within} within."
        )


def _table_of_means_by_cut(means: Mapping[str, Grouped]) -> Table:
    """Return the table for the screen: a row for each cut, or for some of them if there are many.

    A cut is where a stitched classifier goes over from the source's blocks to the target's; it is
    called by the number of the source's last block, or -1 after its embedding. Each quantity has
    two columns: its means within and between groups of classifiers. CKA compares layers, and is in
    the row of the cut after the same block; it has no value for the cut after the embedding.

    Args:
        means: The means of each quantity ("flips", "CKA", ...) at each cut or layer.
    """
    n_cuts = len(means["flips"].between.value)
    cut_indices = few(n_cuts)  # evenly spaced, if there are too many for the screen
    columns = [number_column("cut", [FIRST_CUT + index for index in cut_indices])]
    for name, quantity in means.items():
        for kind, estimate in (("within", quantity.within), ("between", quantity.between)):
            n_without_value = n_cuts - len(estimate.value)
            cells = [""] * n_without_value + [f"{value:.2f}" for value in estimate.value]
            columns.append(Column(f"{name} {kind}", [cells[index] for index in cut_indices]))
    return Table("mean over pairs of models within a group, and between groups", columns)


def _means_by_quantity(result: Result) -> dict[str, Grouped]:
    """Return means over pairs of classifiers of three quantities: lost accuracy, flips and CKA.

    Means are taken within groups of classifiers and between groups. A stitched classifier runs the
    first blocks of a source and the later blocks of a target. Lost accuracy ("accuracy penalty")
    is the target's own minus that of the stitched classifier. Flips are the share of its
    predictions that differ from those of the target alone. There is a mean for each cut between
    source and target, or, for CKA, for each layer.
    """
    # The group of each classifier, in the order of the axes below.
    groups = list(result.details.drop_duplicates("source")["group_of_source"])
    correct = torch.from_numpy(
        result.arrays["correct"]
    )  # (source, target, cut, pair of sentences)
    predicted = torch.from_numpy(result.arrays["predicted"])  # the same axes
    values = {
        "accuracy penalty": population_penalties(correct.double().mean(-1)),
        "flips": flips(predicted).mean(-1),
        "CKA": torch.from_numpy(result.arrays["cka"]),  # (source, target, layer)
    }
    return {name: grouped(values_of_pairs, groups) for name, values_of_pairs in values.items()}


def with_run_settings(member: ModelConfig, config: PopulationJob) -> ModelConfig:
    """Return the configuration of a classifier, with the dtype, device and context of `model`.

    The user sets `model.dtype` and so on for all classifiers of the population. If the user also
    names a model, these settings belong to it, and the classifier is returned unchanged.

    Args:
        member: The configuration of one classifier of the population.
        config: The job.
    """
    if config.model.name:
        return member
    run_settings = {
        name: value for name, value in settings_of(config.model).items() if name in RUN_SETTINGS
    }
    return with_changes(member, run_settings)


def _load_members(
    members: Sequence[Member], config: PopulationJob, pairs: Pairs
) -> list[FrozenModel]:
    """Load the classifiers of a population, and check that they fit together.

    Args:
        members: Names, groups and configurations of the classifiers.
        config: The job.
        pairs: The pairs of sentences on which they are compared.

    Raises:
        ModelError: A model is no classifier; tokenizers or shapes differ; or the order of a
            model's classes is wrong.
    """
    models = [load_model(member.config) for member in members]
    for model in models:
        if not model.classes:
            raise ModelError(
                f"{model.name} is no classifier; a population is of classifiers of pairs"
            )
        check_same_tokenizer(models[0], model)
    check_same_shape(models)
    _check_order_of_classes(models, config, pairs)
    return models


def _check_order_of_classes(
    models: Sequence[FrozenModel], config: PopulationJob, pairs: Pairs
) -> None:
    """Check that each model states its classes in the order of its logits.

    The order is wrong if the model classifies pairs of sentences better with another order. This
    is tried on a sample of at most `PAIRS_CHECKED` pairs.

    Args:
        models: The classifiers.
        config: The job.
        pairs: The labelled pairs to sample from, if they have the three classes of MNLI. If they
            have the two of HANS, models of three classes are checked on held-out pairs of MNLI
            instead, as two classes do not show that neutral and contradiction are exchanged.
            Models of two classes are then checked on pairs of the whole challenge set, whose
            classes are both there whatever the settings select.

    Raises:
        ModelError: The stated order of a model's classes is wrong.
    """
    if pairs.classes != MNLI_CLASSES:
        split: PairSplit = "challenge"
        if len(models[0].classes) == len(MNLI_CLASSES):
            split = "report"  # held-out pairs
        pairs = read_pairs(config.pairs, split)
    sample = pairs.sample(min(PAIRS_CHECKED, len(pairs)), config.seed)
    batch_size = config.measure_as(PopulationMeasureConfig).batch
    batches = list(padded_batches(_encode(sample, models), batch_size))
    for model in models:
        logits = torch.empty(len(sample), len(model.classes), dtype=torch.float64)
        for batch in batches:
            logits_of_batch = model.full(batch.tokens, batch.mask.long(), batch.types)
            logits[batch.pair_indices] = logits_of_batch.double().cpu()
        check_labels(logits, sample.labels, model.classes, sample.classes, name=model.name)


def _encode(pairs: Pairs, models: Sequence[FrozenModel]) -> EncodedPairs:
    """Return the token ids of pairs of sentences, truncated to the shortest context of the models.

    The models have one tokenizer; that of the first is used.
    """
    shortest_context = min(model.context for model in models)
    return encode_pairs(pairs, models[0].tokenizer, shortest_context)


def _stitch_table(
    members: Sequence[Member], stitches: IdentityStitches, correct: Bool[Tensor, "m m c n"]
) -> pd.DataFrame:
    """Return the table of stitched classifiers: a row for each source, target and cut.

    A stitched classifier runs the source up to a cut, and then the target's later blocks, without
    a map between them. The cut is the number of the source's last block, or -1 if only its
    embedding runs. The penalties are the target's own accuracy minus that of the stitch, and the
    loss of the stitch minus the target's own. Flips are the share of predictions, in [0, 1], that
    differ from those of the target alone.

    Args:
        members: The m classifiers.
        stitches: The losses and predictions of all stitches.
        correct: Whether each prediction is right, by source, target, cut and pair of sentences.
    """
    accuracy = correct.double().mean(-1)
    loss = stitches.losses.mean(-1)
    values = {
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_penalty": population_penalties(accuracy),
        # A higher loss is worse, so the difference (target - stitch) is negated.
        "loss_penalty": -population_penalties(loss),
        "flips": flips(stitches.predicted).mean(-1),
    }
    n_cuts = correct.shape[2]
    cuts = range(FIRST_CUT, FIRST_CUT + n_cuts)
    return _long_table(members, cuts, "cut", values)


def _long_table(
    members: Sequence[Member], depths: range, depth_column: str, values: dict[str, Tensor]
) -> pd.DataFrame:
    """Return a table with one row for each source, target and depth.

    Args:
        members: The m classifiers, each of which is a source and a target.
        depths: The number of each layer, or of each cut between two blocks.
        depth_column: The name of the column of these numbers: "layer" or "cut".
        values: The values of each further column, (source, target, depth).
    """
    rows = []
    for source, target, depth in itertools.product(members, members, depths):
        rows.append((source.name, target.name, source.group, target.group, depth))
    columns = ["source", "target", "group_of_source", "group_of_target", depth_column]
    table = pd.DataFrame(rows, columns=columns)
    # The rows are in the order of the flattened values: by source, target and depth.
    return table.assign(**{name: value.flatten().numpy() for name, value in values.items()})
