"""measure=ruler: how similar the layers of two models are, in bits.

Two layers of 4 bits are as similar as a model and its copy that is rounded to 4 bits.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from thinkalike import figures
from thinkalike.config import AnalyzeConfig, MeasureConfig, SettingValues, setting
from thinkalike.instruments.layer_note import show_layer_note
from thinkalike.instruments.ruler.calibration_points import (
    BLOCKS_AWAY,
    OTHER_TEXT,
    check_has_ruler,
    measure_calibration_points,
)
from thinkalike.instruments.ruler.screen import (
    MEANING_OF_RESIDUAL_R2,
    RESIDUAL_R2,
    sentence_of_ruler,
    show_bit_widths,
    show_further_points,
    sides_with_bit_widths,
)
from thinkalike.instruments.ruler.table import blank_columns, calibration_points_table, ruler_table
from thinkalike.instruments.ruler.words import (
    LEAST_WORDS,
    WORDS,
    comparison_at_words,
    estimated_tokens_of_words,
    facts_of_words,
    fewest_words_for_r2,
    log_left_out_words,
    seconds_of_maps,
)
from thinkalike.instruments.text_name import name_of_text
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.job.inputs import Inputs
from thinkalike.job.setting_groups import FIT_TEXT, REPORT_TEXT, left_in_key
from thinkalike.measures.bit_readings import BITS_OF_COPIES
from thinkalike.measures.sample_size import has_interval, why_no_interval
from thinkalike.models.fingerprints import checkpoint_fingerprint
from thinkalike.models.layer_choice import LayerChoice, layers_at_depths, pairs_of_layers
from thinkalike.models.load import load_model
from thinkalike.models.model_config import configured
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.ranking import ranked_rows
from thinkalike.screen import show_note, show_text
from thinkalike.states.folder import load_sources
from thinkalike.states.source import StateSource, pairs_of_sources, reader_of
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)

MOST_LAYER_PAIRS = 5
"""So many layer pairs of equal relative depth are compared, unless `layers=` names some."""

OWN_POINTS: Mapping[str, Sequence[str]] = {
    "bits": (),
    "layers": tuple(BLOCKS_AWAY),
    "text": (OTHER_TEXT,),
}
"""The calibration points that the words of the setting `calibration_points` stand for; any other
word names a model. Copies of fewer bits are always there."""

FURTHER_COLUMNS = [
    "above_local_mixing",
    "value_forward",
    "value_backward",
    "above_local_mixing_low",
    "above_local_mixing_high",
    "source_random_control",
    "target_random_control",
]
"""Columns that only `result.details` has."""

TOKENS_PER_PIECE = 128
"""Models read text in pieces of so many tokens at most."""

MOST_HALVINGS = 4
"""A budget halves the words at most so many times."""


@dataclass
class RulerConfig(MeasureConfig):
    """The settings of the ruler."""

    kind: str = "ruler"
    # number of held-out words, in pieces of text of up to 128 tokens
    words: int = setting(WORDS, least=LEAST_WORDS, most=10**8)
    # drop excludes the few words with massive activations, which alone would decide a layer; keep
    # includes them
    massive: Literal["drop", "keep"] = "drop"
    # what each model is also compared with, besides rounded copies (bits): its own layers 1, 2 and
    # 4 blocks away (layers), its states on other text (text), and models by name or folder
    calibration_points: list[str] = field(default_factory=lambda: ["bits"])

    def __post_init__(self) -> None:
        """Add rounded copies ("bits") to the calibration points, and drop repeated ones."""
        super().__post_init__()
        # Different spellings of the same list must be the same job, with one key.
        self.calibration_points = list(dict.fromkeys(["bits", *self.calibration_points]))

    @property
    def further_models(self) -> list[str]:
        """The names and folders of the models that are calibration points."""
        return [name for name in self.calibration_points if name not in OWN_POINTS]

    def further_points_of(self, model: StateSource) -> list[str]:
        """Return the names of a model's further calibration points, besides rounded copies.

        A calibration point is something that the model is compared with, such as its own layer
        some blocks away. "k blocks away" is left out if the model has fewer than 2k blocks, as
        some of its layers then have no layer that is k blocks away, before or after them.
        """
        points = []
        for word in self.calibration_points:
            # A word of the setting may stand for several points, or for none, as "bits" does. Any
            # other word is the name of a model, which is a point itself.
            for point in OWN_POINTS.get(word, (word,)):
                blocks_away = BLOCKS_AWAY.get(point, 0)
                if 2 * blocks_away <= model.n_layers:
                    points.append(point)
        return points


class RulerInstrument(
    Instrument[AnalyzeConfig],
    kind="ruler",
    version=11,
    reads=("model", "target", "layers", "data", "measure"),
):
    """Says how similar two models are at pairs of layers, in bits of each of them."""

    of_models: ClassVar[str] = "pairs"
    smallest: ClassVar[Mapping[str, object]] = {"measure.words": 8192, "layers": "[[2,2]]"}

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings of the amount of text, which this job ignores, with their values."""
        return left_in_key(config, FIT_TEXT | REPORT_TEXT)

    def inputs(self, config: AnalyzeConfig) -> Inputs:
        """Return what decides the numbers besides settings, by name, for the hash of the job.

        These are the fingerprints of both models, of the text, and of the further models that both
        are compared with (`measure.calibration_points`).
        """
        inputs = dict(super().inputs(config))
        for name in config.measure_as(RulerConfig).further_models:
            model = configured(name, {})
            # Keys of stored results have the word "rung" for a calibration point.
            inputs[f"rung {model.called}"] = checkpoint_fingerprint(model)
        return inputs

    def model_passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes of each model and of its changed copies, to estimate the job's time.

        Each model runs once itself, once for each rounded copy, and once for its untrained copy.
        """
        runs_of_each_model = 2 + len(BITS_OF_COPIES)  # 2: the model and its untrained copy
        n_compared_words = config.measure_as(RulerConfig).words
        tokens = estimated_tokens_of_words(n_compared_words) * runs_of_each_model
        passes = []
        # A shape has the name of its model, so a model that is both source and target counts once.
        for shape in dict.fromkeys(shapes.values()):
            passes.append(
                shape.passes(
                    "models and calibration points", tokens, TOKENS_PER_PIECE, with_logits=False
                )
            )
        return passes

    def seconds_beside_passes(self, config: AnalyzeConfig, shapes: Shapes) -> float:
        """Return the seconds that fitting linear maps takes, to estimate the job's time.

        At each layer pair, maps are fitted between the two models, and between each model and each
        of its rounded copies.

        For `layers=same`, `MOST_LAYER_PAIRS` pairs are counted, since no more are compared. For
        `layers=all` the same number is counted, and pairs beyond it are left out of the estimate.
        """
        layer_pairs = MOST_LAYER_PAIRS  # for "same" and "all"
        if config.layers not in ("same", "all"):
            layer_pairs = len(config.layers)
        width = max(shape.width for shape in shapes.values())
        words = config.measure_as(RulerConfig).words
        seconds = seconds_of_maps(words, width)
        copies = 2 * len(BITS_OF_COPIES)  # 2 for both models
        # At each layer pair there are a layer of either model and of each copy, the pair of both
        # models, and a pair of each copy with its model.
        seconds_of_layers = (2 + copies) * seconds.per_layer
        seconds_of_pairs = (1 + copies) * seconds.per_pair
        return layer_pairs * (seconds_of_layers + seconds_of_pairs)

    def reductions(
        self, config: AnalyzeConfig, shapes: Shapes, chosen: Collection[str]
    ) -> Iterator[dict[str, object]]:
        """Yield settings that take ever less time, for `budget=`: all words, a half, a quarter...

        There are never fewer words than R² needs, unless the job itself asks for fewer.
        """
        words = config.measure_as(RulerConfig).words
        words_needed = fewest_words_for_r2(shape.width for shape in shapes.values())
        fewest = min(words_needed, words)
        word_counts = [max(words // 2**halvings, fewest) for halvings in range(MOST_HALVINGS + 1)]
        for word_count in dict.fromkeys(word_counts):
            yield {"measure.words": word_count}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        """Compare pairs of layers at words, and each model with its calibration points."""
        measure = config.measure_as(RulerConfig)
        with work.phase("loading"):
            models = load_sources(config.model, config.target)
            check_has_ruler(models)
            # A calibration point that cannot be loaded, or reads shorter texts, must show before
            # the other points are made.
            readers = [reader_of(load_model(name)) for name in measure.further_models]

        pairs = _layer_pairs(config.layers, models)
        source_layers = [source_layer for source_layer, _ in pairs]
        target_layers = [target_layer for _, target_layer in pairs]
        names = [model.name for model in models]
        described = [model.describe() for model in models]
        with work.phase("models"):
            comparison = comparison_at_words(
                config.data,
                models,
                [source_layers, target_layers],
                measure.words,
                readers=readers,
                keeps_massive=measure.massive == "keep",
            )
        values = measure_calibration_points(comparison, models, work, measure.further_points_of)
        log_left_out_words(comparison)

        scalars = comparison.numbers()
        effective_documents = scalars["effective_sample_size"]
        if not has_interval(effective_documents):
            reason = why_no_interval(effective_documents, int(scalars["documents"]))
            log.warning("warning: %s", reason)
        table = ruler_table(names, pairs, values)
        points = calibration_points_table(names, [source_layers, target_layers], values.points)
        return Outcome(
            table,
            scalars,
            tables={"calibration_points": points},
            models=described,
            facts=facts_of_words(config.data),
            blank=blank_columns(table),
        )

    def draw(self, result: Result, folder: Path) -> None:
        """Draw residual R² by layer pair, beside the R² of each model with its changed copies."""
        documents = result.scalars["documents"]
        figures.calibrated_layer_pairs(
            result.details, result.tables["calibration_points"], documents, folder, "residual R²"
        )

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the most similar layers first, without `FURTHER_COLUMNS`."""
        return ranked_rows(table.drop(columns=FURTHER_COLUMNS, errors="ignore"), "value")

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the residual R² and the equivalent bit widths of the middle layer pair.

        A side without rounded copies (some folders of states) has no bit width.
        """
        row = result.details.iloc[len(result.details) // 2]
        headlines = [Headline.with_ends("residual_r2", row["value"], row["low"], row["high"])]
        for side, _ in sides_with_bit_widths(row):
            name = f"{side}_equivalent_bits"
            bits, low, high = row[[name, f"{name}_low", f"{name}_high"]]
            headlines.append(Headline.with_ends(f"equivalent_bits_of_{side}", bits, low, high))
        return headlines

    def show(self, result: Result) -> None:
        """Print the answer in a sentence, the table of layer pairs, and what its terms mean."""
        table = result.details
        source = table["source"].iloc[0]
        target = table["target"].iloc[0]
        show_text(f"{sentence_of_ruler(table, result.scalars)} Text: {name_of_text(result)}.")
        title = (
            f"Residual R² (mean of both directions) of {source} and {target}, with the equivalent "
            "bit width by residual R²"
        )
        show_bit_widths(table, title, RESIDUAL_R2)
        show_note(MEANING_OF_RESIDUAL_R2)
        show_layer_note(result)
        show_further_points(result.tables["calibration_points"])


def _layer_pairs(layers: LayerChoice, models: Sequence[StateSource]) -> list[tuple[int, int]]:
    """Return the layer pairs that are compared.

    For "same", the default, these are at most `MOST_LAYER_PAIRS` pairs of equal relative depth. A
    folder of states may lack some layers; pairs with such a layer are not chosen.

    Args:
        layers: The setting `layers=`.
        models: The source and the target.
    """
    source, target = models
    if layers != "same":
        return pairs_of_layers(layers, source.n_layers, target.n_layers)
    have_all_layers = all(len(model.layers) == model.n_layers for model in models)
    if have_all_layers:
        return layers_at_depths(MOST_LAYER_PAIRS, source.n_layers, target.n_layers)
    return pairs_of_sources(MOST_LAYER_PAIRS, source, target)
