"""Probes of linguistic features, carried from one model to another (Chen, Merullo, Stolfo & Pavlick 2025).

"Transferring linear features across language models with model stitching" (NeurIPS 2025, arXiv 2506.06609). Where the
paper gives no number, the claims name thresholds of this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Model, Part
from thinkalike.contrib.transfer.measures import Accuracy
from thinkalike.contrib.transfer.probing import BLANK, CARRIED, NATIVE, RANDOM, REFITTED
from thinkalike.measures.estimates import Estimate
from thinkalike.models.shapes import shape_of
from thinkalike.store import Result

MODELS = {
    "mini": ["gpt2-mini", "gpt2-mini-s1"],
    "paper": ["pythia-70m-deduped", "pythia-160m-deduped", "gpt2", "gpt2-medium"],
}


class Pair(NamedTuple):
    """A source and a target."""

    source: Model
    target: Model

    @property
    def label(self) -> str:
        return f"{self.source.name} into {self.target.name}"

    def layers(self, depths: Sequence[Fraction] = ()) -> list[list[int]]:
        """Return the pairs of layers after these shares of the blocks of both; of each layer of the shallower one.

        There are none where the number of blocks of a model is not known before it is loaded.
        """
        shapes = [shape_of(model.config) for model in self]
        counts = [shape.layers for shape in shapes if shape]
        if len(counts) < 2:
            return []
        shares = depths or [Fraction(number, min(counts)) for number in range(1, min(counts) + 1)]
        return [[max(round(share * count), 1) - 1 for count in counts] for share in shares]


def pairs_of(case: Case) -> list[Pair]:
    return [Pair(*case.models[place : place + 2]) for place in range(0, len(case.models), 2)]


def layers_word(case: Case, pair: Pair, depths: Sequence[Fraction] = ()) -> str:
    """Return the word that says at which layers a pair is compared: those that were asked for, or at equal depth."""
    asked = case.config.layers
    return f"layers={asked if asked not in (None, 'same') else pair.layers(depths) or 'same'}".replace(" ", "")


HALF = Fraction(1, 2)  # of the blocks, after which states are probed
KEPT = {"PoS": 0.9, "Number": 0.9, "Question": 0.7, "Word position": 0.7}  # share of native, above chance
LEXICAL = ("Gender", "Person", "Word length", "Tense")
NEAR = 0.1  # of chance, in balanced accuracy
LITTLE = 0.5  # share of native, above chance


@dataclass(frozen=True)
class Probed:
    """The accuracies of one layer pair, from the result of its job."""

    label: str
    result: Result
    rows: pd.DataFrame

    def accuracy(self, feature: str, condition: str, split: str = "sentence") -> Accuracy | None:
        """Return the accuracy of a condition, or None if it was not measured."""
        chosen = pd.Series({"feature": feature, "condition": condition, "split": split})
        found = self.rows[(self.rows[list(chosen.index)] == chosen).all(axis=1)]
        if found.empty:
            return None
        row, replicates = found.iloc[0], torch.from_numpy(self.result.arrays["replicates"][found.index[0]])
        known = replicates[~replicates.isnan()]
        return Accuracy(torch.tensor(float(row["accuracy"])).double(), known, int(row["levels"]))

    def share(self, feature: str, condition: str, level: float = 0.95) -> Estimate | None:
        """Return what share of the native accuracy above chance a condition has; None where native is not above it."""
        own, native = self.accuracy(feature, condition), self.accuracy(feature, NATIVE)
        found = own.share_of(native, above=native.chance, level=level) if own and native else None
        return None if found is None or found.value.isnan() else found

    @property
    def features(self) -> list[str]:
        return list(dict.fromkeys(self.rows["feature"]))

    @property
    def units(self) -> str:
        return f"{self.rows['sentences'].max()} sentences"


def _parts(case: Case) -> list[Part]:
    return [Part(pair.label, pair, (layers_word(case, pair, [HALF]),)) for pair in pairs_of(case)]


def _probes(case: Case) -> Conclusion:
    claims: list[Claim] = []
    for label, result in case.results.items():
        for (layer, depth), rows in result.table.groupby(["source_layer", "target_layer"], sort=False):
            probed = Probed(f"{label}, layer {layer} → {depth}", result, rows)
            claims += [*_kept(probed), *_lexical(probed), _random(probed), _refitted(probed)]
    table = pd.concat([result.table for result in case.results.values()], ignore_index=True)

    def draw(folder: Path) -> None:
        for label, result in case.results.items():
            name = "probes" if len(case.results) == 1 else label.replace(" ", "-")
            figures.carried_probes(result.table, folder, name)

    return Conclusion(table, claims, draw, blank=BLANK)


def _kept(probed: Probed) -> Iterator[Claim]:
    for feature, least in KEPT.items():
        claim = f"{probed.label}: a carried probe of {feature} keeps {least:g} of what a native one has above chance"
        yield _share(probed, claim, feature, Bound("above", least))


def _lexical(probed: Probed) -> Iterator[Claim]:
    for feature in LEXICAL:
        claim = f"{probed.label}: {feature} is a matter of single words, unknown to a native probe of others"
        native = probed.accuracy(feature, NATIVE, "word")
        if native is None:
            yield untestable(claim, f"{feature} is not judged on held-out words")
        else:
            found = _above_chance(native)
            numbers = f"native accuracy on held-out words minus chance {found:+.3f}"
            yield judged(claim, [(Bound("within", NEAR), found)], numbers, probed.units)
        claim = f"{probed.label}: a carried probe of {feature} keeps less than half of what a native one has"
        yield _share(probed, claim, feature, Bound("below", LITTLE))


def _share(probed: Probed, claim: str, feature: str, bound: Bound) -> Claim:
    found = probed.share(feature, CARRIED)
    if found is None:
        reason = "is not above chance" if feature in probed.features else "is not among these stimuli's features"
        return untestable(claim, f"{feature} {reason}")
    return judged(claim, [(bound, found)], f"share {found:.2f}", probed.units)


def _random(probed: Probed) -> Claim:
    level = level_of_each(len(probed.features))
    known = {name: probed.accuracy(name, RANDOM) for name in probed.features}
    found = {name: _above_chance(accuracy, level) for name, accuracy in known.items() if accuracy}
    claim = "through random maps of the same spectrum probes are near chance"
    return _of_all(probed, claim, Bound("within", NEAR), found, "accuracy minus chance", "+.2f")


def _refitted(probed: Probed) -> Claim:
    level = level_of_each(len(probed.features))
    shares = {name: probed.share(name, REFITTED, level) for name in probed.features}
    found = {name: share for name, share in shares.items() if share}
    claim = "maps lose directions, not information: probes refitted on what ψ makes have 0.9 of native"
    return _of_all(probed, claim, Bound("above", 0.9), found, "share", ".2f")


def _of_all(probed: Probed, claim: str, bound: Bound, found: dict[str, Estimate], what: str, spec: str) -> Claim:
    numbers = ", ".join(f"{name} {each:{spec}}" for name, each in found.items())
    parts = [(bound, each) for each in found.values()]
    return judged(f"{probed.label}: {claim}", parts, f"{what}: {numbers}{together(len(found))}", probed.units)


def _above_chance(accuracy: Accuracy, level: float = 0.95) -> Estimate:
    return Estimate(*(end - accuracy.chance for end in accuracy.interval(level)))


EXPERIMENTS = [Experiment("chen2025/probes", _probes, MODELS, _parts, "probes", takes=(2,))]
