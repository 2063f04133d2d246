"""Linear features carried from one model to another: probes, steering vectors and sparse autoencoders.

Chen, Merullo, Stolfo & Pavlick, "Transferring linear features across language models with model stitching" (NeurIPS
2025, arXiv 2506.06609). Where the paper gives no number, the claims name thresholds of this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from thinkalike.config import ModelConfig
from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, judged, level_of_each, together, untestable
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.sae import fitting
from thinkalike.contrib.subjects.measures import random_effects
from thinkalike.contrib.transfer import probes, steering
from thinkalike.contrib.transfer.measures import effects_of
from thinkalike.measures.accuracy import Accuracy, Jackknifed
from thinkalike.measures.estimates import Estimate
from thinkalike.models import families
from thinkalike.models.shapes import shape_of
from thinkalike.store import Result

MODELS = {
    "mini": ["gpt2-mini", "gpt2-mini-s1"],
    "paper": ["pythia-70m-deduped", "pythia-160m-deduped", "gpt2", "gpt2-medium"],
}


class Pair(NamedTuple):
    """A source and a target."""

    source: ModelConfig
    target: ModelConfig

    @property
    def label(self) -> str:
        return f"{families.label(self.source)} into {families.label(self.target)}"

    def layers(self, depths: Sequence[Fraction] = ()) -> list[list[int]]:
        """Return the pairs of layers after these shares of the blocks of both; of each layer of the shallower one.

        There are none where the number of blocks of a model is not known before it is loaded.
        """
        shapes = [shape_of(model) for model in self]
        counts = [shape.layers for shape in shapes if shape]
        if len(counts) < 2:
            return []
        shares = depths or [Fraction(number, min(counts)) for number in range(1, min(counts) + 1)]
        return [[max(round(share * count), 1) - 1 for count in counts] for share in shares]


def pairs_of(case: Case) -> list[Pair]:
    models = list(case.models.values())
    return list(map(Pair, models[::2], models[1::2]))


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
        worth = float(row["effective_parts"])
        return Accuracy(torch.tensor(float(row["accuracy"])).double(), known, worth, int(row["levels"]))

    def share(self, feature: str, condition: str, level: float = 0.95) -> Estimate | None:
        """Return what share of the native accuracy above chance a condition has; None where native is not above it."""
        own, native = self.accuracy(feature, condition), self.accuracy(feature, probes.NATIVE)
        found = own.share_of(native, above=native.chance, level=level) if own and native else None
        return None if found is None or found.value.isnan() else found

    @property
    def features(self) -> list[str]:
        return list(dict.fromkeys(self.rows["feature"]))

    @property
    def units(self) -> str:
        return f"{self.rows['sentences'].max()} sentences"


def _probing_parts(case: Case) -> list[Part]:
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

    return Conclusion(table, claims, draw, blank=probes.BLANK)


def _kept(probed: Probed) -> Iterator[Claim]:
    for feature, least in KEPT.items():
        claim = f"{probed.label}: a carried probe of {feature} keeps {least:g} of what a native one has above chance"
        yield _share(probed, claim, feature, Bound("above", least))


def _lexical(probed: Probed) -> Iterator[Claim]:
    for feature in LEXICAL:
        claim = f"{probed.label}: {feature} is a matter of single words, unknown to a native probe of others"
        native = probed.accuracy(feature, probes.NATIVE, "word")
        if native is None:
            yield untestable(claim, f"{feature} is not judged on held-out words")
        else:
            found = _above_chance(native)
            numbers = f"native accuracy on held-out words minus chance {found:+.3f}"
            yield judged(claim, [(Bound("within", NEAR), found)], numbers, probed.units)
        claim = f"{probed.label}: a carried probe of {feature} keeps less than half of what a native one has"
        yield _share(probed, claim, feature, Bound("below", LITTLE))


def _share(probed: Probed, claim: str, feature: str, bound: Bound) -> Claim:
    found = probed.share(feature, probes.CARRIED)
    if found is None:
        reason = "is not above chance" if feature in probed.features else "is not among these stimuli's features"
        return untestable(claim, f"{feature} {reason}")
    return judged(claim, [(bound, found)], f"share {found:.2f}", probed.units)


def _random(probed: Probed) -> Claim:
    level = level_of_each(len(probed.features))
    known = {name: probed.accuracy(name, probes.RANDOM) for name in probed.features}
    found = {name: _above_chance(accuracy, level) for name, accuracy in known.items() if accuracy}
    claim = "through random maps of the same spectrum probes are near chance"
    return _of_all(probed, claim, Bound("within", NEAR), found, "accuracy minus chance", "+.2f")


def _refitted(probed: Probed) -> Claim:
    level = level_of_each(len(probed.features))
    shares = {name: probed.share(name, probes.REFITTED, level) for name in probed.features}
    found = {name: share for name, share in shares.items() if share}
    claim = "maps lose directions, not information: probes refitted on what ψ makes have 0.9 of native"
    return _of_all(probed, claim, Bound("above", 0.9), found, "share", ".2f")


def _of_all(probed: Probed, claim: str, bound: Bound, found: dict[str, Estimate], what: str, spec: str) -> Claim:
    numbers = ", ".join(f"{name} {each:{spec}}" for name, each in found.items())
    parts = [(bound, each) for each in found.values()]
    return judged(f"{probed.label}: {claim}", parts, f"{what}: {numbers}{together(len(found))}", probed.units)


def _above_chance(accuracy: Accuracy, level: float = 0.95) -> Estimate:
    return Estimate(*(end - accuracy.chance for end in accuracy.interval(level)))


# Steering vectors of number and of questions.

THIRD = Fraction(1, 3)  # of the blocks, after which number is steered; questions are after half of them
STRONG = 4.0  # the strength at which questions are steered
NEXT_TO_NOTHING = 0.1  # share of the natural effect
BEYOND = "beyond random"  # by how much the carried direction, with the norm of the native one, does more
NOTHING, above = Bound("within", NEXT_TO_NOTHING), partial(Bound, "above")
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
        """Return the shares of the natural effect by condition, and how far a carried vector is beyond a random one."""
        names = [*self.result.table["condition"].unique(), BEYOND]
        first, second = names.index(steering.MATCHED), names.index(steering.RANDOM)
        pair = effects[0].value, effects[0].replicates
        value, replicates = (torch.cat([each, each[[first]] - each[[second]]]) for each in pair)
        shares = Jackknifed(value, replicates, effects[0].worth).share_of(effects[1], level=level)
        return {name: shares[place] for place, name in enumerate(names)}

    @property
    def units(self) -> str:
        words = len(set(self.result.arrays["groups"].tolist()))
        return f"{self.result.scalars['pairs']:.0f} pairs of texts with {words} words"


def _steering_parts(case: Case) -> list[Part]:
    measure = case.config.measure_as(steering.SteeringConfig)
    question = replace(measure, contrast="question", positions=[steering.LATER], strengths=[*measure.strengths, STRONG])
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

    return Conclusion(pd.concat(parts, ignore_index=True), claims, draw, blank=steering.BLANK)


def _number(steered: Steered) -> Iterator[Claim]:
    """Yield what is claimed of the direction from singular to plural at the noun, after a third of the blocks."""
    for text, strength, condition, bound in (
        ("the carried direction of number does .65 of what the plural does", 1.0, steering.CARRIED, above(0.65)),
        ("twice the carried direction of number does .9 of what the plural does", 2.0, steering.CARRIED, above(0.9)),
        ("a random vector of the same norm does next to nothing", 1.0, steering.RANDOM, NOTHING),
        ("twice a random vector does next to nothing", 2.0, steering.RANDOM, NOTHING),
        ("the negated carried direction does next to nothing", 1.0, steering.NEGATED, NOTHING),
        ("of one norm the carried direction does more than a random one", 1.0, BEYOND, above()),
    ):
        yield _claim(steered, text, THIRD, "word", strength, condition, bound)


def _question(steered: Steered) -> Iterator[Claim]:
    """Yield what is claimed of the direction from statement to question, at all later tokens, after half the blocks."""
    for text, condition, bound in (
        ("the native direction of questions does half of what the question does", steering.NATIVE, above(0.5)),
        ("the carried direction of questions does half of what the question does", steering.CARRIED, above(0.5)),
        ("a random vector of the same norm does next to nothing", steering.RANDOM, NOTHING),
        ("of one norm the carried direction does more than a random one", BEYOND, above()),
    ):
        yield _claim(steered, text, HALF, steering.LATER, STRONG, condition, bound)


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
    shares = {at: steered.shares(effects, level)[steering.NATIVE] for at, effects in found.items()}
    numbers = ", ".join(f"{layer}→{depth} {share:.2f}" for (layer, depth), share in shares.items())
    parts = [(Bound("below", NEXT_TO_NOTHING), share) for share in shares.values()]
    return judged(claim, parts, f"share: {numbers}{together(len(found))}", steered.units)


# Sparse autoencoders that begin as those of another model: what that saves, all FLOPs counted. Beside a random start
# stands a stronger one that needs no other model: random, with the decoder of least squares on as many tokens as the
# maps are fitted on.

SEEDS = 5
RATES = "sae.lr_multiples=[2,4]"
LITTLE_TEXT = "data.report_tokens=16384"  # three jobs and their sources within minutes
BUDGETS = (1 / 2, 1)  # of the tokens of a job, at which claims are judged
SHORT = "sae.tokens=163840"


class Transfer(NamedTuple):
    """A source and a target, their layers, the settings of both, and what is claimed."""

    source: str
    source_layer: int
    target: str
    layer: int
    settings: tuple[str, ...]
    claim: str
    bound: Bound  # of the share of FLOPs that is saved against a random start

    @property
    def label(self) -> str:
        return f"{self.source}:{self.source_layer} → {self.target}:{self.layer}"


SAVES = "a transferred start saves more than {limit:.0%} of the FLOPs of a random one"
LESS = "a source of a quarter of the width saves less than {limit:.0%} of the FLOPs of a random start"

TRANSFERS = {
    "mini": [
        Transfer("gpt2-mini", 2, "gpt2-mini-s1", 2, ("sae.map_tokens=2048",), SAVES, Bound("above", 0.35)),
        Transfer("neox-5l-mini", 2, "neox-6l-mini", 2, ("sae.k=16", SHORT), SAVES, Bound("above", 0.15)),
        Transfer("neox-3l-mini", 1, "neox-6l-mini", 2, ("sae.k=16", SHORT), LESS, Bound("below", 0.15)),
    ],
    "paper": [
        Transfer("pythia-70m-deduped", 3, "pythia-160m-deduped", 6, (), SAVES, Bound("above", 0.30)),
        Transfer("gpt2", 6, "gpt2-medium", 12, (), SAVES, Bound("above", 0.30)),
    ],
}
SAE_MODELS = {
    scale: list(dict.fromkeys(name for each in transfers for name in (each.source, each.target)))
    for scale, transfers in TRANSFERS.items()
}


def _sae_parts(case: Case) -> list[Part]:
    """Return a job for each transfer, with all starts in it; the autoencoders of its source are made on the way."""
    shared = ["task=sae", "sae.start=transferred", "sae.beside=[random,least_squares]", RATES, f"sae.seeds={SEEDS}"]
    shared += [LITTLE_TEXT] if case.scale == "mini" else []
    words = "sae.layer={0.layer}", "sae.source={0.source}", "sae.source_layer={0.source_layer}"
    return [
        Part(each.label, (each.target,), (*(word.format(each) for word in words), *each.settings, *shared), "train")
        for each in TRANSFERS[case.scale]
    ]


def _sae(case: Case) -> Conclusion:
    transfers, tables = TRANSFERS[case.scale], {}
    for name in ("table", "savings", "curves"):
        parts = [case.results[each.label].tables[name].assign(transfer=each.label) for each in transfers]
        tables[name] = pd.concat(parts, ignore_index=True)
    fitted, claims = "it saves FLOPs of a random start with a fitted decoder", []
    for each in transfers:
        claims.append(_saves(case, each, "random", each.claim.format(limit=each.bound.limit), each.bound))
        claims.append(_saves(case, each, "least_squares", fitted, Bound("above")))
    draw = partial(figures.sae_curves, tables["curves"])
    return Conclusion(tables.pop("table"), claims, draw, tables, blank=fitting.BLANK)


def _saves(case: Case, transfer: Transfer, against: str, claim: str, bound: Bound) -> Claim:
    result = case.results[transfer.label]
    table = result.tables["savings"].reset_index()
    rows = table[(table["start"] == "transferred") & (table["against"] == against)]
    chosen = rows[rows["tokens"].isin([rows["tokens"].max() * share for share in BUDGETS])]
    saved = torch.from_numpy(result.arrays["saved"])[chosen["index"].tolist()]
    found = random_effects(saved, level=level_of_each(len(chosen)))
    said = "; ".join(
        f"{100 * value:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}] % at {tokens:,} tokens"
        for value, low, high, tokens in zip(*(part.tolist() for part in found), chosen["tokens"], strict=True)
    )
    late = " (some seeds never get there)" if (chosen["reached"] < 1).any() else ""
    numbers = f"{said}{late}{together(len(chosen))}"
    return judged(f"{transfer.label}: {claim}", [(bound, found)], numbers, f"{SEEDS} seeds")


EXPERIMENTS = [
    Experiment("chen2025/probes", _probes, MODELS, _probing_parts, "probes", takes=(2,)),
    Experiment("chen2025/steering", _steering, MODELS, _steering_parts, "steering", takes=(2,)),
    Experiment("chen2025/sae", _sae, SAE_MODELS, _sae_parts),
]
