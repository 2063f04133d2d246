"""measure=probes: linear probes of linguistic features, carried from one model to another.

    python analyze.py measure=probes model=gpt2-mini model@target=gpt2-mini-s1 'layers=[[2,2]]'

Source: Chen et al. 2025. Intervals leave out whole sentences, as the words of one sentence are not
independent.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isnan, nan
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch
from torch.nn.utils.rnn import pad_sequence

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, setting
from thinkalike.contrib.transfer.linear_probes import MOST_STEPS
from thinkalike.contrib.transfer.maps import (
    OfMaps,
    TransferConfig,
    fitted_maps,
    layer_pair_columns,
    load_pair,
    unexplained_table,
)
from thinkalike.contrib.transfer.probing import (
    BACK,
    CARRIED,
    IDENTITY,
    NATIVE,
    NATIVE_SOURCE,
    RANDOM,
    REFITTED,
    UNTRAINED,
    Probing,
)
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.evaluation.columns import interval_columns
from thinkalike.instruments.of_stimuli import sentence_passes, stimuli_facts
from thinkalike.instruments.probing_tasks import SPLITS, Task, tasks_of_features_and_splits
from thinkalike.instruments.stitching.setting import shared_text
from thinkalike.job import Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.measures.accuracy import Accuracy
from thinkalike.measures.estimates import interval_around
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.sites import SITES_OUTSIDE_BLOCKS
from thinkalike.models.variants import untrained_like
from thinkalike.processes import counted
from thinkalike.screen import (
    Column,
    Table,
    few,
    number_column,
    show_table,
    show_text,
    text_column,
)
from thinkalike.states.stimuli import stimulus_states, stimulus_states_of, with_own_states
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

# The native condition that a condition is a share of.
SHARE_OF = {
    CARRIED: NATIVE,
    BACK: NATIVE_SOURCE,
    REFITTED: NATIVE,
    RANDOM: NATIVE,
    IDENTITY: NATIVE,
}
NO_SHARE = interval_around(torch.tensor(nan), nan)

# Cells are empty for conditions without a share, and for few sentences.
BLANK = [
    "share",
    "share_low",
    "share_high",
    "share_above_chance",
    "share_above_chance_low",
    "share_above_chance_high",
    "low",
    "high",
    "replicates",
]

# The conditions on the screen, by the names of their columns.
CONDITIONS_SHOWN = {
    "native": NATIVE,
    "carried": CARRIED,
    "random": RANDOM,
    "untrained": UNTRAINED,
}
FEATURES_SHOWN = 12
LEGEND = (
    "Native probes are fitted in the target, carried ones in the source and read through ψ, "
    "random ones through maps of ψ's spectrum, untrained ones in an untrained target; share is "
    "that of native above chance."
)


@dataclass
class ProbesConfig(TransferConfig):
    """The settings of probes and of their controls."""

    kind: str = "probes"
    # ridge penalties
    alphas: list[float] = setting(lambda: [0.1, 1.0, 10.0, 100.0, 1000.0], above=0, most=1e9)
    # folds of the stimuli
    folds: int = setting(5, least=2, most=10**4)
    # folds of the stimuli of other folds, on which the penalty is chosen
    inner_folds: int = setting(3, least=2, most=10**4)
    # what is held out together: sentence, word
    splits: list[str] = field(default_factory=lambda: list(SPLITS))
    # stimuli that a level needs to be told apart
    least: int = setting(20, least=2, most=10**9)
    # number of random maps
    draws: int = setting(5, least=1, most=10**4)
    # whether the target before training is probed as well
    untrained: bool = True

    def __post_init__(self) -> None:
        """Refuse unknown splits."""
        super().__post_init__()
        for split in self.splits:
            one_of("measure.splits", split, SPLITS)


class CarriedProbes(
    OfMaps,
    kind="probes",
    version=4,
    reads=("model", "target", "layers", "data", "measure", "stimuli", "seed"),
):
    """Applies probes of `model` to `model@target` and back, through maps fitted on text."""

    takes_sites: ClassVar[bool] = True

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return the stimuli, and hashes of both models and of the text that maps are fitted on.

        Raises:
            ConfigError: A model is to be read at several hook points in a block, or at one outside
                of the blocks.
        """
        stimuli = read_stimuli(config.stimuli)
        for model in (config.model, config.target):
            # A site is a hook point in a block; the attention heads of a site are read apart.
            has_several_sites = not isinstance(model.site, str) or model.head == "all"
            if has_several_sites or model.site in SITES_OUTSIDE_BLOCKS:
                raise ConfigError(
                    "probes are of one place in each block: give one "
                    f"{named_setting('model.site')}, and one {named_setting('model.head')} of z"
                )
        _tasks(config, stimuli)  # called for its errors, before any model is loaded
        return {"stimuli": stimuli, **super().inputs(config)}

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes of the models, to estimate the job's time.

        Source and target read the sentences that probes are fitted on, and the text that maps
        between them are fitted on. The control with an untrained target has maps of its own, for
        which both the source and the untrained target read the text. The time to fit probes is
        left out.

        Args:
            config: The job.
            shapes: The sizes of the source ("model") and of the target ("target").
        """
        passes_over_text = super().model_passes(config, shapes)
        passes = [*sentence_passes(config, shapes), *passes_over_text]
        if config.measure_as(ProbesConfig).untrained:
            # An untrained model has the sizes of the trained one. The phase names the control.
            passes += [replace(item, phase="untrained target") for item in passes_over_text]
        return passes

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Apply probes of each model to the other through maps, and compare them with controls.

        The result has a row for each layer pair, probing task and condition, which says where a
        probe is fitted and what it reads.

        Raises:
            DataError: A stimulus has no state of its own.
        """
        measure = config.measure_as(ProbesConfig)
        stimuli: Stimuli = work.input("stimuli", Stimuli)
        with work.phase("loading"):
            source, target, pairs = load_pair(config)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("states"):
            sides = stimulus_states_of(config, stimuli, embed=False, loaded=(source, target))
            if not with_own_states(stimuli, sides).all():
                raise DataError(
                    f"{stimuli.source}: probes need a state of every stimulus: "
                    "leave those rows out"
                )
        with work.phase("maps"):
            maps = fitted_maps(source, target, pairs, corpus, measure.ridge)
            probing = Probing(measure, config.seed, sides[0].states, sides[-1].states, maps)
            if measure.untrained:
                untrained = untrained_like(target, config.seed)
                probing = replace(
                    probing,
                    untrained=stimulus_states(untrained, stimuli),
                    maps_to_untrained=fitted_maps(source, untrained, pairs, corpus, measure.ridge),
                )

        rows = []
        replicates = []
        for pair in counted(pairs, "layer pair"):
            for task in counted(_tasks(config, stimuli), "task"):
                probed = probing.probe(task, pair)
                for row in _rows_of_conditions(task, stimuli, probed.accuracies):
                    columns = layer_pair_columns(source, target, pair)
                    rows.append({**columns, **row, "converged": probed.converged})
                for accuracy in probed.accuracies.values():
                    replicates.append(accuracy.replicates)
        table = pd.DataFrame(rows)
        _warn_of_unconverged(table)
        padded = pad_sequence(replicates, batch_first=True, padding_value=nan)
        return Outcome(
            table,
            {**_mean_scalars(table), "stimuli": float(len(stimuli))},
            {"replicates": padded.numpy()},
            {"maps": unexplained_table(source, target, maps)},
            models=[side.origin for side in sides],
            facts={
                **stimuli_facts(stimuli),
                "data": {"name": config.data.name, **corpus.facts()},
            },
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the accuracies of the probes over layers."""
        from thinkalike.contrib.figures.transfer import draw_probes  # imports matplotlib

        draw_probes(result.details, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return three means over features and layer pairs.

        They are (carried accuracy - chance) / (native accuracy - chance), and both accuracies. A
        carried probe was fitted on states of the source, and reads states of the target through a
        map; a native probe was fitted on states of the target. A mean that the result does not
        have is left out.
        """
        names = ("mean_share_above_chance", "mean_carried_accuracy", "mean_native_accuracy")
        scalars = result.scalars
        return [Headline(name, scalars[name]) for name in names if name in scalars]

    def show(self, result: Result) -> None:
        """Print the accuracy for each feature, the means of each split, and how well maps predict.

        A split is what is held out together, all words of a sentence or all uses of a word. The
        accuracies for each feature are those of the first split.

        A probe predicts a feature of a word from a state. A native probe was fitted on the target;
        a carried one was fitted on the source, and reads the target through the map ψ (target to
        source). How well ψ predicts is the least and the greatest share of variance that it leaves
        unexplained at a layer pair.
        """
        table = result.details
        stimuli = result.provenance["stimuli"]
        first_row = table.iloc[0]
        splits = list(table["split"].unique())
        title = (
            f"{first_row['source']} → {first_row['target']}, {stimuli['count']} stimuli of "
            f"{Path(stimuli['source']).name}: balanced accuracy of probes, held-out {splits[0]}s"
        )
        show_table(_table_of_features(title, table))
        for split in splits:
            rows_of_split = table[table["split"] == split]
            # Over features and layer pairs. A condition says where a probe was fitted.
            means = rows_of_split.groupby("condition")[["accuracy", "chance"]].mean()
            carried = means.loc[CARRIED]
            native = means.loc[NATIVE]
            show_text(
                f"On held-out {split}s, carried probes are right on {carried['accuracy']:.2f} on "
                f"average, probes of the target itself on {native['accuracy']:.2f}, and chance is "
                f"{native['chance']:.2f}."
            )
        # For each layer pair, the share of variance that ψ, from target to source, leaves
        # unexplained.
        unexplained = result.tables["maps"]["psi"]
        show_text(
            f"The maps ψ leave {unexplained.min():.2f} to {unexplained.max():.2f} of held-out "
            f"text unexplained. {LEGEND}"
        )


def _tasks(config: AnalyzeConfig, stimuli: Stimuli) -> list[Task]:
    """Return the probing tasks: one for each feature of the stimuli and each split.

    A split is what a fold keeps together, all words of a sentence or all uses of a word. With a
    warning, a task is left out if there are fewer words than folds, or if fewer than two levels of
    the feature occur in several folds.

    Raises:
        DataError: A feature is continuous, or has fewer than two levels, or too few sentences.
    """
    measure = config.measure_as(ProbesConfig)
    tasks = tasks_of_features_and_splits(
        stimuli,
        measure.splits,
        measure.folds,
        least=measure.least,  # levels that fewer stimuli have are left out
        seed=config.seed,
    )
    return list(tasks)


def _rows_of_conditions(
    task: Task, stimuli: Stimuli, accuracies: Mapping[str, Accuracy]
) -> list[dict[str, object]]:
    """Return a row of the table for each condition: its accuracy, and its share of the native one.

    A condition says where a probe is fitted and what it reads. Native probes read the states that
    they were fitted on. For each condition that reads the same states in another way, the table
    has its accuracy as a share of the native accuracy; for other conditions the share is NaN.

    Args:
        task: The feature that was probed, and the stimuli.
        stimuli: All stimuli, with their words.
        accuracies: The accuracy of each condition, by its name.
    """
    n_words = len({stimuli.words[row] for row in task.rows.tolist()})
    rows = []
    for condition, accuracy in accuracies.items():
        value, low, high = (float(end) for end in accuracy.interval())
        share = NO_SHARE
        share_above_chance = NO_SHARE
        native_condition = SHARE_OF.get(condition)
        if native_condition is not None and native_condition in accuracies:
            native = accuracies[native_condition]
            share = accuracy.share_of(native)
            share_above_chance = accuracy.share_of(native, above=accuracy.chance)
        rows.append(
            {
                "feature": task.feature,
                "split": task.split,
                "condition": condition,
                "accuracy": value,
                "low": low,
                "high": high,
                "chance": accuracy.chance,
                **interval_columns("share", share),
                **interval_columns("share_above_chance", share_above_chance),
                "levels": len(task.levels),
                "effective_parts": accuracy.effective_parts,
                "stimuli": len(task.rows),
                "sentences": len(task.sentences.unique()),
                "words": n_words,
            }
        )
    return rows


def _warn_of_unconverged(table: pd.DataFrame) -> None:
    """Log a warning that names the features for which the fit of a probe did not converge.

    The remedy is a larger ridge penalty (alpha), with which fits converge in fewer steps.
    """
    unconverged = table[~table["converged"]]
    features = dict.fromkeys(unconverged["feature"])  # each once, in order
    if features:
        log.warning(
            "warning: probes of %s did not converge in %d steps; raise %s",
            ", ".join(features),
            MOST_STEPS,
            named_setting("measure.alphas"),
        )


def _mean_scalars(table: pd.DataFrame) -> dict[str, float]:
    """Return mean accuracies over features and layer pairs, by name, without means that are NaN.

    Native probes were fitted on the target. Carried probes were fitted on the source, and read the
    target through a map. "share_above_chance" is their accuracy above chance divided by that of
    native probes.

    The column "split" tells how stimuli were divided into those to fit on and those to test on:
    so that no tested sentence, or so that no tested word, was fitted on. The table may have rows
    of both ways. They are not averaged together; only rows of the first way in the table count.
    """
    of_split = table[table["split"] == table["split"].iloc[0]]
    native = of_split[of_split["condition"] == NATIVE]
    carried = of_split[of_split["condition"] == CARRIED]
    means = {
        "mean_native_accuracy": float(native["accuracy"].mean()),
        "mean_carried_accuracy": float(carried["accuracy"].mean()),
        "mean_share_above_chance": float(carried["share_above_chance"].mean()),
    }
    return {name: mean for name, mean in means.items() if not isnan(mean)}


def _table_of_features(title: str, table: pd.DataFrame) -> Table:
    """Return the table for the screen: a row for each feature, at its best pair of layers.

    The best layers are those at which the probe that was fitted on the target ("native") is most
    accurate. There is a column for each condition that is shown, such as "carried": probes that
    were fitted on the source, and read the target through a map. Only rows of the first split are
    used; a split is what is held out together, sentences or words.

    Args:
        title: The title above the table.
        table: The table of the result, with a row for each layer pair, task and condition.
    """
    of_split = table[table["split"] == table["split"].iloc[0]]
    native = of_split[of_split["condition"] == NATIVE]
    best_rows = native.loc[native.groupby("feature", sort=False)["accuracy"].idxmax()]
    shown_indices = few(len(best_rows), FEATURES_SHOWN)  # evenly spaced, at most so many
    shown_rows = best_rows.iloc[shown_indices]
    features_and_layers = shown_rows[["feature", "source_layer", "target_layer"]]
    rows_of_condition = {}
    for label, condition in CONDITIONS_SHOWN.items():
        of_condition = of_split[of_split["condition"] == condition]
        # The merge keeps the rows with these features and layers.
        rows_of_condition[label] = features_and_layers.merge(of_condition)

    carried = rows_of_condition["carried"]
    layers = []
    for source, target in zip(carried["source_layer"], carried["target_layer"], strict=True):
        layers.append(f"{source}→{target}")
    columns = [
        text_column("feature", carried["feature"]),
        Column("layer", layers),
        number_column("chance", carried["chance"], ".2f"),
    ]
    for label, rows in rows_of_condition.items():
        if len(rows) > 0:  # the control with an untrained target may be switched off
            columns.append(number_column(label, rows["accuracy"], ".2f"))
        if label == "carried":
            shares = carried["share_above_chance"]
            cells = ["" if isnan(share) else f"{share:.2f}" for share in shares]
            # A table that is too wide is divided between columns, but not before this one.
            columns.append(Column("share", cells, follows=True))
    return Table(title, columns)
