"""Steering vectors of number and of questions, carried from one model to another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from thinkalike.contrib import figures
from thinkalike.contrib.papers.chen2025_probes import MODELS, Pair, layers_word, pairs_of
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.transfer.measures import Jackknifed, effects_of
from thinkalike.contrib.transfer.steering import BLANK, CARRIED, LATER, MATCHED, NATIVE, NEGATED, RANDOM
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

THIRD, HALF = Fraction(1, 3), Fraction(1, 2)  # of the blocks, after which number and questions are steered
STRONG = 4.0  # the strength at which questions are steered
LITTLE = 0.1  # share of the natural effect
BEYOND = "beyond random"  # by how much the carried direction, with the norm of the native one, does more
NOTHING = Bound("within", LITTLE)
ARRAYS = ("effects", "natural", "groups")


@dataclass(frozen=True)
class Steered:
    """The effects of one contrast between two models, from the result of its job."""

    pair: Pair
    result: Result

    def effects(self, at: Sequence[int], position: str, strength: float) -> tuple[Jackknifed, Jackknifed] | None:
        """Return the effects of all conditions at a layer pair and the natural one, or None if one is missing."""
        table = self.result.table
        chosen = {"source_layer": at[0], "target_layer": at[1], "position": position, "strength": strength}
        found = table[(table[list(chosen)] == pd.Series(chosen)).all(axis=1)]
        if found.empty or found["share"].isna().any():
            return None
        effects, natural, groups = (torch.from_numpy(self.result.arrays[name]) for name in ARRAYS)
        return effects_of(effects[found.index.tolist()], natural, groups)

    def shares(self, effects: tuple[Jackknifed, Jackknifed], level: float = 0.95) -> dict[str, Estimate]:
        """Return the shares of the natural effect by condition, and by how much `MATCHED` is beyond `RANDOM`."""
        names = [*self.result.table["condition"].unique(), BEYOND]
        first, second = names.index(MATCHED), names.index(RANDOM)
        pair = effects[0].value, effects[0].replicates
        value, replicates = (torch.cat([each, each[[first]] - each[[second]]]) for each in pair)
        shares = Jackknifed(value, replicates).share_of(effects[1], level=level)
        return {name: shares[place] for place, name in enumerate(names)}

    @property
    def units(self) -> str:
        words = len(set(self.result.arrays["groups"].tolist()))
        return f"{self.result.scalars['pairs']:.0f} pairs of texts with {words} words"


def _parts(case: Case) -> list[Part]:
    measure: Any = case.config.measure
    question = replace(measure, contrast="question", positions=[LATER], strengths=[*measure.strengths, STRONG])
    return [
        Part(f"{name}, {pair.label}", pair, (layers_word(case, pair),), changes={"measure": each})
        for pair in pairs_of(case)
        for name, each in (("number", measure), ("question", question))
    ]


def _steering(case: Case) -> Conclusion:
    claims: list[Claim] = []
    for pair in pairs_of(case):
        number, question = (Steered(pair, case.results[f"{name}, {pair.label}"]) for name in ("number", "question"))
        claims += [*_number(number), _late(number), *_question(question)]
    parts = [result.table.assign(contrast=label.partition(",")[0]) for label, result in case.results.items()]

    def draw(folder: Path) -> None:
        for label, result in case.results.items():
            figures.steering(result.table, folder, label.replace(", ", "-").replace(" ", "-"))

    return Conclusion(pd.concat(parts, ignore_index=True), claims, draw, blank=BLANK)


def _number(steered: Steered) -> Iterator[Claim]:
    """Yield what is claimed of the direction from singular to plural at the noun, after a third of the blocks."""
    for text, strength, condition, bound in (
        ("the carried direction of number does .65 of what the plural does", 1.0, CARRIED, Bound("above", 0.65)),
        ("twice the carried direction of number does .9 of what the plural does", 2.0, CARRIED, Bound("above", 0.9)),
        ("a random vector of the same norm does next to nothing", 1.0, RANDOM, NOTHING),
        ("twice a random vector does next to nothing", 2.0, RANDOM, NOTHING),
        ("the negated carried direction does next to nothing", 1.0, NEGATED, NOTHING),
        ("of one norm the carried direction does more than a random one", 1.0, BEYOND, Bound("above")),
    ):
        yield _claim(steered, text, THIRD, "word", strength, condition, bound)


def _question(steered: Steered) -> Iterator[Claim]:
    """Yield what is claimed of the direction from statement to question, at all later tokens, after half the blocks."""
    for text, condition, bound in (
        ("the native direction of questions does half of what the question does", NATIVE, Bound("above", 0.5)),
        ("the carried direction of questions does half of what the question does", CARRIED, Bound("above", 0.5)),
        ("a random vector of the same norm does next to nothing", RANDOM, NOTHING),
        ("of one norm the carried direction does more than a random one", BEYOND, Bound("above")),
    ):
        yield _claim(steered, text, HALF, LATER, STRONG, condition, bound)


def _claim(
    steered: Steered, text: str, depth: Fraction, position: str, strength: float, condition: str, bound: Bound
) -> Claim:
    at = next(iter(steered.pair.layers([depth])), None)
    found = steered.effects(at, position, strength) if at else None
    where = f"layer {at[0]} → {at[1]}, strength {strength:g}" if at else f"strength {strength:g}"
    claim = f"{steered.pair.label}, {where}: {text}"
    if found is None:
        return untestable(claim, "these layers, this strength or a natural effect are not there")
    share = steered.shares(found)[condition]
    return judged(claim, [(bound, share)], f"share of the natural effect {share:.2f}", steered.units)


def _late(steered: Steered) -> Claim:
    """Say whether the site matters more than the map: what comes after has read the noun by then."""
    claim = f"{steered.pair.label}: beyond half of the blocks not even the native direction does a tenth at the noun"
    layers = steered.pair.layers()
    late = layers[len(layers) // 2 :]
    found = {tuple(at): effects for at in late if (effects := steered.effects(at, "word", 1.0))}
    if not found:
        return untestable(claim, "these layers are not there")
    level = level_of_each(len(found))
    shares = {at: steered.shares(effects, level)[NATIVE] for at, effects in found.items()}
    numbers = ", ".join(f"{layer}→{depth} {share:.2f}" for (layer, depth), share in shares.items())
    parts = [(Bound("below", LITTLE), share) for share in shares.values()]
    return judged(claim, parts, f"share: {numbers}{together(len(found))}", steered.units)


EXPERIMENTS = [Experiment("chen2025/steering", _steering, MODELS, _parts, "steering", takes=(2,))]
