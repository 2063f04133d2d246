"""measure=steering: the direction of a feature, carried between models, and its effect there.

    python analyze.py measure=steering model=gpt2-mini model@target=gpt2-mini-s1

Source: Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import ClassVar

import pandas as pd
import torch

from thinkalike.advice import named_setting
from thinkalike.config import AnalyzeConfig, setting
from thinkalike.contrib.transfer.maps import (
    OfMaps,
    TransferConfig,
    fitted_maps,
    layer_pair_columns,
    load_pair,
    unexplained_table,
)
from thinkalike.contrib.transfer.steering_trial import (
    CARRIED,
    MATCHED,
    NATIVE,
    POSITIONS,
    RANDOM,
    SINGLE_VECTORS,
    SteeringTrial,
)
from thinkalike.errors import ConfigError, one_of
from thinkalike.instruments.stitching.setting import shared_text
from thinkalike.job import Outcome, Work
from thinkalike.job.inputs import Input, Inputs
from thinkalike.models.layer_choice import pairs_of_layers
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import counted
from thinkalike.screen import (
    Column,
    Table,
    few,
    number_column,
    show_table,
    show_text,
    span,
    text_column,
)
from thinkalike.states.contrasts import CONTRASTS, Contrasts, grammar_contrasts, read_contrasts
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

# Cells are empty for few words, and without a natural effect.
BLANK = ("share", "low", "high", "effect_low", "effect_high")
TOKENS_OF_TEXT = 8  # of a text that is steered, on average

# The conditions on the screen, by the names of their columns.
CONDITIONS_SHOWN = {"native": NATIVE, "carried": CARRIED, "matched": MATCHED, "random": RANDOM}
ROWS_SHOWN = 12
LEGEND = (
    "Native is the target's own vector, carried the source's through φ, matched the same with the "
    "norm of the native one, random one of that norm; x is the strength."
)


@dataclass
class SteeringConfig(TransferConfig):
    """The settings of steering vectors and of their report."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    kind: str = "steering"
    # number, question: of the grammar | table: pairs of texts of your own
    contrast: str = "number"
    # contrast=table: .csv .tsv .parquet
    path: str | None = setting(None, in_key=False)
    # pairs of texts of the grammar
    pairs: int = setting(400, least=2, most=10**7)
    # strengths of a vector; 1: the difference of means itself
    strengths: list[float] = setting(lambda: [1.0, 2.0], above=0, most=1e6)
    # where vectors are added: word, its last token | later, that and all later ones
    positions: list[str] = field(default_factory=lambda: list(POSITIONS))
    # folds of the words: a vector is judged on words that it is not made of
    folds: int = setting(5, least=2, most=10**4)
    # number of random vectors
    draws: int = setting(5, least=1, most=10**4)

    def __post_init__(self) -> None:
        """Refuse unknown contrasts and positions, and a table of pairs without its file.

        Raises:
            ConfigError: A name is unknown, or only one of `contrast=table` and `path` is given.
        """
        super().__post_init__()
        one_of("measure.contrast", self.contrast, (*CONTRASTS, "table"))
        for position in self.positions:
            one_of("measure.positions", position, POSITIONS)
        needs_file = self.contrast == "table"
        has_file = bool(self.path)
        if needs_file != has_file:
            raise ConfigError(
                f"{named_setting('measure.contrast', self.contrast)} "
                f"{named_setting('measure.path', self.path)}: pairs of your own need "
                f"{named_setting('measure.contrast', 'table')} "
                f"{named_setting('measure.path', like='FILE')}"
            )


class Steering(
    OfMaps,
    kind="steering",
    version=4,
    reads=("model", "target", "layers", "data", "measure", "seed"),
):
    """Adds the direction of a feature to the states of `model@target`.

    The direction is computed in the target, or computed in `model` and mapped to the target.
    """

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings.

        These are hashes of both models and of the text that maps are fitted on, and the pairs of
        texts that are steered, if they are in a file (others are generated from settings).
        """
        inputs: dict[str, Input] = {}
        measure = config.measure_as(SteeringConfig)
        if measure.path:
            inputs["contrasts"] = read_contrasts(measure.path)
        return {**inputs, **super().inputs(config)}

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the forward passes of the job, from which its time is estimated.

        Some are over the text that the maps from source to target states are fitted on. In the
        others, the target is steered: it reads each steered text once for each layer pair, vector,
        strength and position. Such a pass is counted as a whole, though it begins after a block.
        """
        measure = config.measure_as(SteeringConfig)
        source = shapes["model"]
        target = shapes["target"]
        n_texts = measure.pairs  # pairs of contrasting texts, of which one text is steered
        if measure.path:  # the user's own file of pairs
            n_texts = len(read_contrasts(measure.path))
        n_layer_pairs = len(pairs_of_layers(config.layers, source.layers, target.layers))
        # One vector of each of these kinds, such as the native one, and several random ones.
        n_vectors = len(SINGLE_VECTORS) + measure.draws
        n_passes = n_layer_pairs * n_vectors * len(measure.strengths) * len(measure.positions)
        tokens = float(n_texts * TOKENS_OF_TEXT)
        passes_of_maps = super().model_passes(config, shapes)
        steering = target.passes("steering", tokens, row_length=TOKENS_OF_TEXT, times=n_passes)
        return [*passes_of_maps, steering]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Steer the target by vectors of the source that are mapped to the target, and by others.

        The table has a row for each layer pair, position and strength, and for each condition,
        such as a vector of the target itself or a random one.
        """
        measure = config.measure_as(SteeringConfig)
        with work.phase("loading"):
            source, target, pairs = load_pair(config)
            contrasts = work.optional_input("contrasts", Contrasts)
            if contrasts is None:
                contrasts = grammar_contrasts(
                    measure.contrast, target.tokenizer, measure.pairs, config.seed
                )
            trial = SteeringTrial(source, target, contrasts, measure, config.seed)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("maps"):
            maps = fitted_maps(source, target, pairs, corpus, measure.ridge)

        rows = []
        effects = []
        for pair in counted(pairs, "layer pair"):
            for condition in trial.conditions(pair, maps[pair]):
                columns = layer_pair_columns(source, target, pair)
                rows.append({**columns, **condition.columns})
                effects.append(condition.effects)
        table = pd.DataFrame(rows)
        natural_effect = float(trial.natural.mean())
        if table["share"].isna().any():
            log.warning(
                "warning: the counterparts move the gap by %.2f nats in %s, not significantly "
                "above 0, so there is no share of it; check up and down",
                natural_effect,
                target.name,
            )
        return Outcome(
            table,
            {"pairs": float(len(contrasts)), "natural_effect": natural_effect},
            {
                "effects": torch.stack(effects).numpy(),
                "natural": trial.natural.numpy(),
                "groups": trial.groups.numpy(),
            },
            {"maps": unexplained_table(source, target, maps)},
            models=[model.describe() for model in dict.fromkeys((source, target))],
            facts={
                "contrasts": {
                    "source": contrasts.source,
                    "fingerprint": contrasts.fingerprint(),
                },
                "data": {"name": config.data.name, **corpus.facts()},
            },
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw the effects of the vectors over layers."""
        from thinkalike.contrib.figures.transfer import draw_steering  # imports matplotlib

        draw_steering(result.details, folder, pairs_and_intervals(result))

    def headlines(self, result: Result) -> list[Headline]:
        """Return the effects of two steering vectors, as shares of the natural effect.

        The vector "native" was computed in the target; "carried" was computed in the source, and
        mapped to the target. The natural effect is that of replacing each text by its counterpart,
        such as the plural of a noun. Both shares are taken at the layers where the native vector
        has the largest effect, at the first position and strength of the table. A share that could
        not be computed is left out.
        """
        by_position_and_strength = result.details.groupby(["position", "strength"], sort=False)
        _, first_rows = next(iter(by_position_and_strength))
        strongest = first_rows[first_rows["condition"] == NATIVE].nlargest(1, "effect")
        # The rows of all conditions at the layers of the strongest native vector.
        at_strongest = first_rows.merge(strongest[["source_layer", "target_layer"]])
        headlines = []
        for name, condition in (("carried_share", CARRIED), ("native_share", NATIVE)):
            row = at_strongest[at_strongest["condition"] == condition].iloc[0]
            headlines.append(Headline.with_ends(name, row["share"], row["low"], row["high"]))
        return [headline for headline in headlines if isfinite(headline.value)]

    def show(self, result: Result) -> None:
        """Print the effects of steering vectors on the target, and the largest one of the source.

        That is the largest effect of a vector that was computed in the source model and mapped to
        the target ("carried"), with the layers, strength and position at which it is added.

        Effects are shares of the natural effect, which is that of replacing each text by its
        counterpart, such as the same text with the plural of a noun. If no share is known, they
        are in nats.
        """
        table = result.details
        scalars = result.scalars
        first = table.iloc[0]  # the models are the same in all rows
        has_shares = table["share"].notna().any()
        value_column = "effect"
        interval_columns = ["effect_low", "effect_high"]
        unit = "effect in nats"
        if has_shares:
            value_column = "share"
            interval_columns = ["low", "high"]
            unit = "share of the natural effect"
        title = (
            f"Steering of {first['target']} by vectors of {first['source']}, "
            f"{pairs_in_words(result)}: {unit}"
        )
        show_table(_table_of_effects(title, table, value_column))

        is_carried = table["condition"] == CARRIED
        strongest = table[is_carried].nlargest(1, value_column).iloc[0]
        low, high = strongest[interval_columns]
        where = "the word's last token"
        if strongest["position"] != "word":
            where += " and all later ones"
        show_text(
            f"The natural effect is {scalars['natural_effect']:.2f} nats. A carried vector does "
            f"most, {span(strongest[value_column], low, high, '.2f')}, at layers "
            f"{strongest['source_layer']}→{strongest['target_layer']}, at strength "
            f"{strongest['strength']:g}, added at {where}."
        )
        show_text(LEGEND)


def pairs_in_words(result: Result) -> str:
    """Return how many pairs of texts there are and where they are from: "9 pairs of mine.csv"."""
    file_of_pairs = Path(result.provenance["contrasts"]["source"]).name
    return f"{result.scalars['pairs']:.0f} pairs of {file_of_pairs}"


def pairs_and_intervals(result: Result) -> str:
    """Return which pairs of texts there are, and what the bars of a figure are, in words."""
    n_words = len(set(result.arrays["groups"].tolist()))
    return f"{pairs_in_words(result)}; bars: 95 % intervals over {n_words} words"


def _table_of_effects(title: str, table: pd.DataFrame, value_column: str) -> Table:
    """Return the table for the screen: a row for each layer pair, position and strength.

    It has at most `ROWS_SHOWN` rows, evenly spaced. There is a column for each kind of steering
    vector (condition), such as "carried" (computed in the source, and mapped to the target), and
    one for the cosine of the carried vector with the native one (computed in the target).

    Args:
        title: The title above the table.
        table: The table of the result, with a row for each layer pair, position, strength and
            condition.
        value_column: The column that is shown: "share" for effects as shares of the natural effect
            (that of replacing each text by its counterpart), or "effect" for effects in nats.
    """
    rows_of_condition = {}
    for label, condition in CONDITIONS_SHOWN.items():
        rows_of_condition[label] = table[table["condition"] == condition]
    # The rows of all conditions have the same layers, positions and strengths in the same order.
    # `few` returns the indices of at most `ROWS_SHOWN` of them.
    shown_indices = few(len(rows_of_condition["carried"]), ROWS_SHOWN)
    carried = rows_of_condition["carried"].iloc[shown_indices]
    layers = []
    for source, target in zip(carried["source_layer"], carried["target_layer"], strict=True):
        layers.append(f"{source}→{target}")
    # A vector is added at the last token of a word ("word"), or at this and all later tokens.
    positions = []
    for position in carried["position"]:
        positions.append("word" if position == "word" else "later, too")
    columns = [
        Column("layer", layers),
        text_column("at", positions),
        number_column("x", carried["strength"], "g"),  # as in "2x"
    ]
    for label, rows in rows_of_condition.items():
        columns.append(number_column(label, rows[value_column].iloc[shown_indices], ".3f"))
    columns.append(number_column("cosine", carried["cosine"], ".2f"))
    n_key_columns = 3  # layer, position and strength identify a row
    return Table(title, columns, keys=n_key_columns)
