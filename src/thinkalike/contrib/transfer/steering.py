"""measure=steering: the direction of a feature, carried from one model to another, and its effect there.

    python analyze.py measure=steering model=gpt2-mini model@target=gpt2-mini-s1

(Chen, Merullo, Stolfo & Pavlick 2025, arXiv 2506.06609.)
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar, Optional

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, setting
from thinkalike.contrib import figures
from thinkalike.contrib.transfer import maps as fitting
from thinkalike.contrib.transfer import measures
from thinkalike.contrib.transfer.maps import OfMaps, PairMap, TransferConfig, named
from thinkalike.errors import ConfigError, DataError, one_of
from thinkalike.instruments.stitching.fitting import shared_text
from thinkalike.job import Outcome, Work
from thinkalike.measures.folds import stimulus_folds
from thinkalike.measures.moments import LayerPair
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import pairs_of_layers
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.processes import counted
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span, text_column
from thinkalike.states.contrasts import (
    CONTRASTS,
    Contrasts,
    EncodedPrompts,
    encode_prompts,
    gap,
    gaps,
    grammar_contrasts,
    read_contrasts,
)
from thinkalike.store import Headline, Result

log = logging.getLogger(__name__)

NATIVE, CARRIED, MATCHED, NEGATED, RANDOM = "native", "carried", "carried, native norm", "carried, negated", "random"
NOT_RANDOM = (NATIVE, CARRIED, MATCHED, NEGATED)
BLANK = ("share", "low", "high", "effect_low", "effect_high")  # of few words, or without a natural effect
LATER = "later"
POSITIONS = ("word", LATER)  # at the last token of the word alone | at that and all later ones
LENGTH = 8  # tokens of a text, about


# ruff: noqa: UP045
@torch.no_grad()
def states_at_words(model: FrozenModel, prompts: EncodedPrompts, layer: int) -> Float[Tensor, "n d"]:
    """Return the states of the word of each text after a block, on the CPU."""
    parts = [(model.head(part.tokens, layer), part.words) for _, part in prompts.batches()]
    return torch.cat([state[torch.arange(len(state)), words].cpu() for state, words in parts])


@torch.no_grad()
def steered_gaps(
    model: FrozenModel, prompts: EncodedPrompts, layer: int, added: Float[Tensor, "c n d"], later: bool = False
) -> Float[Tensor, "c n"]:
    """Return the gaps of `gaps` after each of c vectors was added to the states of each text after block `layer`.

    They are added at the last token of the word, and where it is `later` also at all tokens after it.
    """
    parts = []
    for where, part in prompts.batches():
        state = model.head(part.tokens, layer)
        places = torch.arange(part.tokens.shape[1])
        chosen = places >= part.words[:, None] if later else places == part.words[:, None]
        chosen = chosen.to(state.device, state.dtype)[..., None]
        vectors = added[:, where].to(state.device, state.dtype)
        steered = [model.advance(state + chosen * vector[:, None], layer + 1, model.n_layers) for vector in vectors]
        parts.append(torch.stack([gap(model, each, part) for each in steered]))
    return torch.cat(parts, 1)


@dataclass
class SteeringConfig(TransferConfig):
    """The settings of steering vectors and of their report."""

    paths: ClassVar[tuple[str, ...]] = ("path",)

    kind: str = "steering"
    contrast: str = "number"  # number, question: of the grammar | table: pairs of texts of your own
    path: Optional[str] = setting(None, in_key=False)  # contrast=table: .csv .tsv .parquet
    pairs: int = setting(400, least=2, most=10**7)  # of the grammar
    # 1: the difference of means itself
    strengths: list[float] = setting(lambda: [1.0, 2.0], above=0, most=1e6)
    positions: list[str] = field(default_factory=lambda: list(POSITIONS))  # the word's last token | also all later ones
    # of the words: vectors are judged on others than they are made of
    folds: int = setting(5, least=2, most=10**4)
    draws: int = setting(5, least=1, most=10**4)  # of random vectors

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.contrast", self.contrast, (*CONTRASTS, "table"))
        for position in self.positions:
            one_of("measure.positions", position, POSITIONS)
        if (self.contrast == "table") != bool(self.path):
            given = f"measure.contrast={self.contrast} measure.path={self.path}"
            raise ConfigError(f"{given}: pairs of your own need measure.contrast=table measure.path=FILE")


class Steering(OfMaps, kind="steering", version=4, reads=("model", "target", "layers", "data", "measure", "seed")):
    """Adds the direction of a feature to the states of `model@target`: its own, and that of `model`, carried over."""

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        measure = config.measure_as(SteeringConfig)
        own = {"contrasts": read_contrasts(measure.path)} if measure.path else {}
        return {**own, **super().inputs(config)}

    def passes(self, config: AnalyzeConfig, shapes: Shapes) -> Sequence[Passes]:
        """Return the passes over text, and those of steered texts, as if each began at the first block."""
        measure: Any = config.measure
        source, target = shapes["model"], shapes["target"]
        count = len(read_contrasts(measure.path)) if measure.contrast == "table" else measure.pairs
        pairs = pairs_of_layers(config.layers, source.layers, target.layers)
        times = len(pairs) * (len(NOT_RANDOM) + measure.draws) * len(measure.strengths) * len(measure.positions)
        return [*super().passes(config, shapes), target.passes("steering", float(count * LENGTH), LENGTH, times)]

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure = config.measure_as(SteeringConfig)
        with work.phase("loading"):
            source, target, pairs = fitting.models_and_pairs(config)
            drawn = (measure.contrast, target.tokenizer, measure.pairs, config.seed)
            contrasts = work.optional_input("contrasts", Contrasts) or grammar_contrasts(*drawn)
            trial = Trial(source, target, contrasts, measure, config.seed)
            corpus = shared_text(config.data, source, target, measure.fit_tokens)
        with work.phase("maps"):
            maps = fitting.fitted_maps(source, target, pairs, corpus, measure.ridge)
        rows, effects = [], []
        for pair in counted(pairs, "layer pair"):
            for row, effect in trial.rows(pair, maps[pair]):
                rows.append(named(source, target, pair) | row)
                effects.append(effect)
        if pd.DataFrame(rows)["share"].isna().any():
            log.warning(
                "warning: the counterparts move the gap by %.2f nats in %s, not significantly above 0, so there is no "
                "share of it; check up and down", float(trial.natural.mean()), target.name,
            )  # fmt: skip
        arrays = {"effects": torch.stack(effects), "natural": trial.natural, "groups": trial.groups}
        return Outcome(
            pd.DataFrame(rows),
            {"pairs": float(len(contrasts)), "natural_effect": float(trial.natural.mean())},
            {name: values.numpy() for name, values in arrays.items()},
            {"maps": fitting.unexplained_table(source, target, maps)},
            models=[model.describe() for model in dict.fromkeys((source, target))],
            facts={
                "contrasts": {"source": contrasts.source, "fingerprint": contrasts.fingerprint()},
                "data": {"name": config.data.name, **corpus.facts()},
            },
            blank=BLANK,
        )

    def draw(self, result: Result, folder: Path) -> None:
        figures.steering(result.table, folder)

    def headlines(self, result: Result) -> list[Headline]:
        """Return shares of the natural effect, native and carried, at the layer where the native vector does most."""
        _, first = next(iter(result.table.groupby(["position", "strength"], sort=False)))
        best = first[first["condition"] == NATIVE].nlargest(1, "effect")[["source_layer", "target_layer"]]
        rows: dict[Any, Any] = first.merge(best).set_index("condition").to_dict("index")
        shares = {"carried_share": rows[CARRIED], "native_share": rows[NATIVE]}
        found = [Headline.with_ends(name, row["share"], row["low"], row["high"]) for name, row in shares.items()]
        return [each for each in found if isfinite(each.value)]

    def show(self, result: Result) -> None:
        table, scalars = result.table, result.scalars
        first = table.iloc[0]
        pairs = f"{scalars['pairs']:.0f} pairs of {Path(result.provenance['contrasts']['source']).name}"
        value = "share" if table["share"].notna().any() else "effect"
        unit = "share of the natural effect" if value == "share" else "effect in nats"
        title = f"Steering of {first['target']} by vectors of {first['source']}, {pairs}: {unit}"
        show_table(_table(title, table, value))
        most: Any = next(table[table["condition"] == CARRIED].nlargest(1, value).itertuples())
        where = "the word's last token" + ("" if most.position == "word" else " and all later ones")
        low, high = (most.low, most.high) if value == "share" else (most.effect_low, most.effect_high)
        show_text(
            f"The natural effect is {scalars['natural_effect']:.2f} nats. A carried vector does most, "
            f"{span(getattr(most, value), low, high, '.2f')}, at layers {most.source_layer}→{most.target_layer}, "
            f"at strength {most.strength:g}, added at {where}."
        )
        show_text(LEGEND)


class Trial:
    """The contrasts as both models read them, to steer the target."""

    def __init__(self, source: FrozenModel, target: FrozenModel, contrasts: Contrasts, measure: Any, seed: int):
        self.source, self.target, self.measure, self.seed = source, target, measure, seed
        self.read = encode_prompts(source, contrasts), encode_prompts(target, contrasts)
        texts, counterparts = self.read[1]
        self.texts, self.before = texts, gaps(target, texts)
        self.natural = gaps(target, counterparts) - self.before  # how far each counterpart moves the gap, in nats
        self.groups = contrasts.groups  # the pairs of one word, which folds keep together if there are as many
        owners = self.groups if len(self.groups.unique()) >= measure.folds else None
        try:
            self.fold_of = stimulus_folds(len(self.groups), measure.folds, seed, owners)
        except ValueError as error:
            raise DataError(f"{contrasts.source}: {error}; give more pairs, or lower measure.folds") from error

    def rows(self, pair: LayerPair, maps: PairMap) -> Iterator[tuple[dict[str, Any], Float[Tensor, " n"]]]:
        """Yield the columns of each position, strength and condition, and its effect on each text, in nats."""
        native = self._differences(1, pair[1])
        moved = self._differences(0, pair[0]) @ maps.phi.weight.double().T
        random = measures.random_directions(self.measure.draws, native, torch.Generator().manual_seed(self.seed))
        conditions = {
            NATIVE: native[None],
            CARRIED: moved[None],
            MATCHED: measures.with_norms_of(moved, native)[None],
            NEGATED: -moved[None],
            RANDOM: random,
        }
        added, sizes = torch.cat(list(conditions.values())), [len(vectors) for vectors in conditions.values()]
        for position, strength in itertools.product(self.measure.positions, self.measure.strengths):
            moved = steered_gaps(self.target, self.texts, pair[1], strength * added, position == LATER) - self.before
            effects = torch.stack([part.mean(0) for part in moved.split(sizes)])  # over the vectors of a condition
            found, natural = measures.effects_of(effects, self.natural, self.groups)
            shares, nats = found.share_of(natural), found.interval()
            for place, (name, vectors) in enumerate(conditions.items()):
                row = {"position": position, "strength": strength, "condition": name}
                row |= dict(zip(("share", "low", "high"), map(float, shares[place]), strict=True))
                row |= dict(zip(("effect", "effect_low", "effect_high"), map(float, nats[place]), strict=True))
                cosine = torch.cosine_similarity(vectors, native[None], dim=-1)
                about = {"norm": float(vectors.norm(dim=-1).mean()), "cosine": float(cosine.mean())}
                yield row | about, effects[place]

    def _differences(self, side: int, layer: int) -> Float[Tensor, "n d"]:
        """Return the steering vector of each text on one side, made of the pairs of other folds."""
        model = (self.source, self.target)[side]
        before, after = (states_at_words(model, prompts, layer) for prompts in self.read[side])
        return measures.held_out_differences(before, after, self.fold_of)


SHOWN = {"native": NATIVE, "carried": CARRIED, "matched": MATCHED, "random": RANDOM}
LEGEND = (
    "Native is the target's own vector, carried the source's through φ, matched the same with the norm of the native "
    "one, random one of that norm; x is the strength."
)


def _table(title: str, table: pd.DataFrame, value: str) -> Table:
    """Return the shares, or the effects in nats, of the conditions at some layer pairs, positions and strengths."""
    own = {label: table[table["condition"] == name] for label, name in SHOWN.items()}
    chosen = few(len(own["carried"]), 12)
    carried = own["carried"].iloc[chosen]
    columns = [
        Column("layer", [f"{row.source_layer}→{row.target_layer}" for row in carried.itertuples()]),
        text_column("at", ["word" if position == "word" else "later, too" for position in carried["position"]]),
        number_column("x", carried["strength"], "g"),
    ]
    columns += [number_column(label, each[value].iloc[chosen], ".3f") for label, each in own.items()]
    return Table(title, [*columns, number_column("cosine", carried["cosine"], ".2f")], keys=3)
