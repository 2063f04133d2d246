"""Steering vectors of number and of questions that are carried from one model to another.

Source: Chen, Merullo, Stolfo & Pavlick 2025 (arXiv 2506.06609). Where the paper gives no number,
the claims name thresholds of this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch

from thinkalike.contrib.figures.transfer import draw_steering
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    Bound,
    Claim,
    bonferroni_note,
    judged_claim,
    level_of_each,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.papers.model_pairs import MODELS, Pair, layers_argument, pairs_of
from thinkalike.contrib.transfer.steering import BLANK, SteeringConfig
from thinkalike.contrib.transfer.steering_trial import (
    CARRIED,
    LATER,
    MATCHED,
    NATIVE,
    NEGATED,
    RANDOM,
)
from thinkalike.contrib.transfer.steering_vectors import effects_of
from thinkalike.measures.accuracy import Jackknifed
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

# Relative depths after which the two contrasts are steered.
NUMBER_DEPTH = Fraction(1, 3)
QUESTION_DEPTH = Fraction(1, 2)
QUESTION_STRENGTH = 4.0

# By how much the carried direction, with the norm of the native one, does more than a random one.
BEYOND_RANDOM = "beyond random"

NEXT_TO_NOTHING = 0.1  # share of the natural effect
NOTHING = Bound("within", NEXT_TO_NOTHING)


class Effects(NamedTuple):
    """Effects with their jackknife replicates.

    Attributes:
        steered: The effect of the vector in each condition.
        natural: The effect of the contrast itself.
    """

    steered: Jackknifed
    natural: Jackknifed


@dataclass(frozen=True)
class Steered:
    """The effects of one contrast between two models, from the result of its job.

    Attributes:
        pair: The two models.
        result: The result.
    """

    pair: Pair
    result: Result

    def effects(self, layers: Sequence[int], position: str, strength: float) -> Effects | None:
        """Return how far steering vectors move the target's predictions at a layer pair.

        Returns None if the result has no such rows, or if the natural effect (that of the text
        itself, such as a plural noun), by which effects are divided, is not above 0.

        Args:
            layers: The layer of the source and that of the target.
            position: Where the vector is added: "word" for the last token of the word alone,
                "later" for this and all later tokens.
            strength: What the vector is multiplied by.
        """
        source_layer, target_layer = layers
        selection = {
            "source_layer": source_layer,
            "target_layer": target_layer,
            "position": position,
            "strength": strength,
        }
        table = self.result.details
        has_selected_cells = (table[list(selection)] == pd.Series(selection)).all(axis=1)
        rows = table[has_selected_cells]
        if rows.empty or rows["share"].isna().any():
            return None
        arrays = self.result.arrays
        steered, natural = effects_of(
            torch.from_numpy(arrays["effects"])[rows.index.tolist()],
            torch.from_numpy(arrays["natural"]),
            torch.from_numpy(arrays["groups"]),
        )
        return Effects(steered, natural)

    def shares(self, effects: Effects, level: float = 0.95) -> dict[str, Estimate]:
        """Return the effect of each condition as a share of the natural effect.

        The natural effect is that of the text itself, such as a plural noun. A condition is which
        vector was added. The last entry, `BEYOND_RANDOM`, is a difference: the share of the
        carried vector (computed in the source, and mapped to the target) with the norm of the
        native one (computed in the target), minus the share of a random vector.
        """
        conditions = list(self.result.details["condition"].unique())
        matched = conditions.index(MATCHED)
        random = conditions.index(RANDOM)
        value = effects.steered.value  # (conditions,)
        replicates = effects.steered.replicates  # (conditions, groups)
        with_difference = Jackknifed(
            torch.cat([value, value[[matched]] - value[[random]]]),
            torch.cat([replicates, replicates[[matched]] - replicates[[random]]]),
            effects.steered.effective_parts,
        )
        shares = with_difference.share_of(effects.natural, level=level)
        names = [*conditions, BEYOND_RANDOM]
        return {name: shares[index] for index, name in enumerate(names)}

    @property
    def units(self) -> str:
        """What intervals are over, in words."""
        n_words = len(set(self.result.arrays["groups"].tolist()))
        return f"{self.result.scalars['pairs']:.0f} pairs of texts with {n_words} words"


def _steering_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return two jobs for each pair of models: steering of number, and of questions.

    Vectors of questions are added at the word and all later tokens only, and also at the strength
    `QUESTION_STRENGTH`.
    """
    number = experiment.config.measure_as(SteeringConfig)
    question = replace(
        number,
        contrast="question",
        positions=[LATER],
        strengths=[*number.strengths, QUESTION_STRENGTH],
    )
    jobs = []
    for pair in pairs_of(experiment):
        for name, measure in (("number", number), ("question", question)):
            jobs.append(
                InnerJob(
                    f"{name}, {pair.label}",
                    pair,
                    (layers_argument(experiment, pair),),
                    changes={"measure": measure},
                )
            )
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Judge all claims about each pair of models; the table has the results of both contrasts.

    The contrasts are singular against plural, and statement against question.
    """
    claims: list[Claim] = []
    for pair in pairs_of(experiment):
        number = Steered(pair, experiment.results[f"number, {pair.label}"])
        question = Steered(pair, experiment.results[f"question, {pair.label}"])
        claims += [
            *_claims_about_number(number),
            _claim_about_late_layers(number),
            *_claims_about_questions(question),
        ]
    tables = []
    for label, result in experiment.results.items():
        contrast = label.partition(",")[0]
        tables.append(result.details.assign(contrast=contrast))

    def draw(folder: Path) -> None:
        """Draw one figure for each pair of models and contrast."""
        for label, result in experiment.results.items():
            name = label.replace(", ", "-").replace(" ", "-")
            draw_steering(result.details, folder, name)

    table = pd.concat(tables, ignore_index=True)
    return Conclusion(table, claims, draw, blank=BLANK)


def _claims_about_number(steered: Steered) -> Iterator[Claim]:
    """Judge the claims about adding the direction from singular to plural at the noun.

    The carried direction was computed in the source, and mapped to the target.
    """
    # Each entry: the claim in words, the strength of the vector, which vector it is, and where its
    # share of the natural effect must be.
    for text, strength, condition, bound in (
        (
            "the carried direction of number does .65 of what the plural does",
            1.0,
            CARRIED,
            Bound("above", 0.65),
        ),
        (
            "twice the carried direction of number does .9 of what the plural does",
            2.0,
            CARRIED,
            Bound("above", 0.9),
        ),
        (
            "a random vector of the same norm does next to nothing",
            1.0,
            RANDOM,
            NOTHING,
        ),
        ("twice a random vector does next to nothing", 2.0, RANDOM, NOTHING),
        (
            "the negated carried direction does next to nothing",
            1.0,
            NEGATED,
            NOTHING,
        ),
        (
            "of one norm the carried direction does more than a random one",
            1.0,
            BEYOND_RANDOM,
            ABOVE_ZERO,
        ),
    ):
        yield _claim_about_share(steered, text, NUMBER_DEPTH, "word", strength, condition, bound)


def _claims_about_questions(steered: Steered) -> Iterator[Claim]:
    """Judge the claims about adding the direction from statement to question.

    It is added at the word and all later tokens. The native direction was computed in the target;
    the carried one in the source, and mapped to the target.
    """
    # Each entry: the claim in words, which vector is added, and where its share of the natural
    # effect must be.
    for text, condition, bound in (
        (
            "the native direction of questions does half of what the question does",
            NATIVE,
            Bound("above", 0.5),
        ),
        (
            "the carried direction of questions does half of what the question does",
            CARRIED,
            Bound("above", 0.5),
        ),
        ("a random vector of the same norm does next to nothing", RANDOM, NOTHING),
        (
            "of one norm the carried direction does more than a random one",
            BEYOND_RANDOM,
            ABOVE_ZERO,
        ),
    ):
        yield _claim_about_share(
            steered, text, QUESTION_DEPTH, LATER, QUESTION_STRENGTH, condition, bound
        )


def _claim_about_share(
    steered: Steered,
    text: str,
    depth: Fraction,
    position: str,
    strength: float,
    condition: str,
    bound: Bound,
) -> Claim:
    """Judge a claim about the effect of one vector, as a share of the effect of the text itself.

    It is untestable if these layers, this strength or a natural effect were not measured.

    Args:
        steered: The effects of one contrast.
        text: The claim in words.
        depth: The relative depth of the layer after which vectors are added.
        position: Where they are added: "word" or "later".
        strength: What they are multiplied by.
        condition: Which vector is added, or `BEYOND_RANDOM`.
        bound: Where the share must be for the claim to hold.
    """
    where = f"strength {strength:g}"
    effects = None
    layer_pairs = steered.pair.layers([depth])
    if layer_pairs:
        (layers,) = layer_pairs
        where = f"layer {layers[0]} → {layers[1]}, {where}"
        effects = steered.effects(layers, position, strength)
    claim = f"{steered.pair.label}, {where}: {text}"
    if effects is None:
        reason = "these layers, this strength or a natural effect are not there"
        return untestable_claim(claim, reason)
    share = steered.shares(effects)[condition]
    numbers = f"share of the natural effect {share:.2f}"
    return judged_claim(claim, [(bound, share)], numbers, steered.units)


def _claim_about_late_layers(steered: Steered) -> Claim:
    """Judge the claim that in late layers not even the target's own direction works at the noun.

    If so, the cause is not a bad map between the models, but that later tokens have already read
    the noun. Layer pairs without results are left out; if none is left, the claim is untestable.
    """
    claim = (
        f"{steered.pair.label}: beyond half of the blocks not even the native direction does a "
        "tenth at the noun"
    )
    layer_pairs = steered.pair.layers()
    effects_of_pair = {}
    for layers in layer_pairs[len(layer_pairs) // 2 :]:
        effects = steered.effects(layers, "word", 1.0)
        if effects is not None:
            effects_of_pair[tuple(layers)] = effects
    if not effects_of_pair:
        return untestable_claim(claim, "these layers are not there")

    count = len(effects_of_pair)
    level = level_of_each(count)
    bounded = []
    listed = []
    for (source_layer, target_layer), effects in effects_of_pair.items():
        share = steered.shares(effects, level)[NATIVE]
        bounded.append((Bound("below", NEXT_TO_NOTHING), share))
        listed.append(f"{source_layer}→{target_layer} {share:.2f}")
    numbers = f"share: {', '.join(listed)}{bonferroni_note(count)}"
    return judged_claim(claim, bounded, numbers, steered.units)


EXPERIMENTS = [
    Experiment("chen2025/steering", _conclude, MODELS, _steering_jobs, "steering", takes=(2,)),
]
