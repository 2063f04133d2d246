"""What all instruments have in common whose table has a value for every pair of layers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from thinkalike import figures
from thinkalike.catalogue import title_of
from thinkalike.config import AnalyzeConfig, SettingValues
from thinkalike.config.parts import AFTER
from thinkalike.instruments.layer_pairs import screen
from thinkalike.instruments.layer_pairs.components import (
    are_same_components,
    components_that_differ_first,
    layer_by_component,
    marked_components,
    places_correspond,
    show_components,
)
from thinkalike.instruments.layer_pairs.equal_depth import LayerName, rows_between_models
from thinkalike.job import Instrument
from thinkalike.job.setting_groups import FIT_TEXT, REPORT_TEXT, left_in_key
from thinkalike.models.families import Layer
from thinkalike.models.layer_choice import layers_of_sides
from thinkalike.ranking import ranked_layer_pairs
from thinkalike.states.source import StateSource
from thinkalike.states.tokens import site_numbers, sites
from thinkalike.store import Headline, Result

if TYPE_CHECKING:
    import pandas as pd


LAYER_PAIR = {"source", "target", "source_layer", "target_layer"}
"""The columns of a table of layer pairs that say which pair a row is of."""


class LayerMatrix(Instrument[AnalyzeConfig]):
    """A job whose table has a value for each layer of `model` with each of `model@target`."""

    scale: tuple[float, float] = (0.0, 1.0)
    """The ends of the scale of colours."""

    is_distance: bool = False
    """Whether smaller values are closer."""

    in_atlas: bool = False
    """Whether `measure=atlas` has it where nobody chooses."""

    takes_sites: ClassVar[bool] = True
    of_models: ClassVar[str] = "pairs"

    @property
    def name(self) -> str:
        """The title of the measure in tables and figures."""
        return title_of(self.kind)

    @abstractmethod
    def has_embedding(self, config: AnalyzeConfig) -> bool:
        """Return whether the site before block 0 is compared, too."""

    def unread(self, config: AnalyzeConfig) -> SettingValues:
        """Return the settings that comparisons ignore: the amounts of fitting and evaluation text.

        They are returned with their values, since the keys of stored results contain these.
        """
        return left_in_key(config, FIT_TEXT | REPORT_TEXT)

    def sites(self, config: AnalyzeConfig, models: Sequence[StateSource]) -> list[list[Layer]]:
        """Return the layers (hook points) of the source and of the target that are compared.

        If the setting `layers=` lists layer pairs, these are the layers in the pairs. If it is
        "same" or "all", they are all layers. The embedding comes first if the job compares it.

        Args:
            config: The job.
            models: The source and the target.
        """
        has_embedding = self.has_embedding(config)
        if config.layers in ("same", "all"):
            return [sites(model, has_embedding) for model in models]
        source, target = models
        layers_by_side = layers_of_sides(
            config.layers, source.n_layers, target.n_layers, itself=source is target
        )
        return [
            sites(source, has_embedding, layers_by_side[0]),
            sites(target, has_embedding, layers_by_side[1]),
        ]

    def named(self, sites: Sequence[Layer]) -> Sequence[LayerName]:
        """Return what tables call these layers: their numbers, or the names of hook points."""
        return site_numbers(sites)

    def draw(self, result: Result, folder: Path) -> None:
        """Draw a map of all layer pairs, or of components by layer if those are compared."""
        subtitle = screen.amount_compared_in_words(result)
        if "components" not in result.tables:
            label = self.label(result)
            figures.layer_heatmaps(
                result.details, folder, self.kind, label, self.scale, about=subtitle
            )
            return

        components = result.tables["components"]
        scale = self.scale
        if self.is_distance:
            scale = (0.0, float(components["value"].max()))
            subtitle += "; differences accumulate from layer to layer"
        first = result.details.iloc[0]
        models = f"{first.source} and {first.target}"
        layers_of = "both models"
        if not are_same_components(components):
            models = f"{first.source}, each with the most similar of {first.target}"
            layers_of = str(first.source)
        matrix = layer_by_component(components)
        label = self.label(result)
        marked = marked_components(result, self.is_distance)
        # The least similar components have the greatest distance, the most similar ones the
        # greatest similarity.
        frames_greatest = self.is_distance == (marked == "least similar")
        subtitle = f"{models}\n{subtitle}; framed: the {marked} of each layer"
        figures.components(
            matrix,
            folder,
            self.kind,
            label,
            scale,
            subtitle,
            layers_of,
            frames_greatest=frames_greatest,
        )

    def label(self, result: Result) -> str:
        """Return the name of the measure for tables and figures, such as "CKA at mlp_post".

        It contains the hook point unless states are those after blocks, and the condition if
        values are conditional, as in "CKA conditional on the token".
        """
        label = self.name
        site = _site_of_all(result)
        if site and "components" not in result.tables:
            label += f" at {site}"
        if "conditional_on" in result.details:
            label += f" conditional on the {result.details['conditional_on'].iloc[0]}"
        return label

    def ranked(self, table: pd.DataFrame) -> pd.DataFrame:
        """Return the rows of a table of layer pairs, first those that answer the user's question.

        Of two models these are the most similar layers. If each component (a head, an MLP or
        another hook point) of a model is compared with the same one of a changed copy, the
        question is what changed, and the components that differ most come first.
        """
        ranked = ranked_layer_pairs(table, smallest_first=self.is_distance)
        has_layer_pairs = set(table) >= LAYER_PAIR  # the columns that name both layers of a row
        if has_layer_pairs and places_correspond(rows_between_models(table), self.is_distance):
            return components_that_differ_first(ranked, self.is_distance)
        return ranked

    def headlines(self, result: Result) -> Sequence[Headline]:
        """Return the value of the least similar layers and a mean over layers as headlines.

        If a single layer is compared with itself, there are no two layers that could be least
        similar, and no mean over different layers. The first scalar of the result is then the only
        headline, as for any instrument by default.
        """
        # `kind` is that of the measure, such as "cka", with which the names of headlines begin.
        headlines = screen.headlines_of(self.kind, result, self.is_distance)
        if not headlines:  # a single layer is compared with itself
            return super().headlines(result)
        return headlines

    def show(self, result: Result) -> None:
        """Print where models are most and least similar, with a map of layers or of components."""
        if "components" in result.tables:
            show_components(self.label(result), result, self.is_distance)
        else:
            screen.show_layer_pairs(
                self.label(result),
                result,
                self.is_distance,
                self.uncomputed_controls(result),
                self.meaning(result),
            )

    def meaning(self, result: Result) -> str:
        """Return in a sentence what a value is, such as a share of neighbours; "": say nothing."""
        return ""

    def uncomputed_controls(self, result: Result) -> Sequence[str]:
        """Return the controls that the user could have asked for and did not, in words.

        They end the sentence "Whether that is more than ... was not computed", such as "by chance
        (measure.null=true)". By default there are none.
        """
        return ()


def _site_of_all(result: Result) -> str:
    """Return the hook point of both models, such as "mlp_post", if it is not the default.

    The default is the residual stream after blocks. The result is "" if states were read there, or
    at different hook points of the two models.
    """
    sites = set()
    for side in ("model", "target"):
        model = result.config.get(side)
        if model:
            sites.add(str(model.get("site", AFTER)))
    if len(sites) == 1 and AFTER not in sites:
        return sites.pop()
    return ""
