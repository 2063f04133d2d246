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
    bonferroni_level,
    bonferroni_note,
    judged_claim,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.papers.model_pairs import MODELS, Pair, layers_argument, pairs_of
from thinkalike.contrib.transfer.steering import BLANK, SteeringConfig, pairs_and_intervals
from thinkalike.contrib.transfer.steering_trial import (
    CARRIED,
    LATER,
    MATCHED,
    NATIVE,
    NEGATED,
    RANDOM,
)
from thinkalike.contrib.transfer.steering_vectors import jackknifed_mean_effects
from thinkalike.measures.accuracy import Jackknifed
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

# Relative depths after which the two contrasts are steered.
NUMBER_DEPTH = Fraction(1, 3)
QUESTION_DEPTH = Fraction(1, 2)
QUESTION_STRENGTH = 4.0

# By how much the carried direction, with the norm of the native one, does more than a random one.
BEYOND_RANDOM = "beyond random"

# An effect of less than this share of the natural effect, a tenth, is next to nothing.
NEXT_TO_NOTHING = 0.1
NEARLY_NO_EFFECT = Bound("within", NEXT_TO_NOTHING)


class Effects(NamedTuple):
    """Effects with their jackknife replicates.

    Attributes:
        steered: The effect of each vector. A condition says which vector was added.
        natural: The effect of the text itself, such as a plural noun.
    """

    steered: Jackknifed
    natural: Jackknifed


@dataclass(frozen=True)
class SteeringEffects:
    """The effects of the steering vectors of one contrast, from the result of a job.

    Vectors are computed in the target, or in the source and mapped to the target. Their effect is
    how far they move the target's predictions.

    Attributes:
        pair: The source and the target.
        result: The result of the job.
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
        is_selected = (table[list(selection)] == pd.Series(selection)).all(axis=1)
        rows = table[is_selected]  # one for each condition, that is, for each vector
        # A share is NaN if the natural effect, its divisor, is not above 0.
        if rows.empty or rows["share"].isna().any():
            return None
        arrays = self.result.arrays
        # The array of effects has a row for each row of the table.
        steered, natural = jackknifed_mean_effects(
            torch.from_numpy(arrays["effects"])[rows.index.tolist()],
            torch.from_numpy(arrays["natural"]),
            torch.from_numpy(arrays["groups"]),  # pairs of texts with the same word are a group
        )
        return Effects(steered, natural)

    def shares(self, effects: Effects, level: float = 0.95) -> dict[str, Estimate]:
        """Return the effect of each steering vector as a share of the natural effect.

        An effect is how far predictions move; the natural one is that of the text itself, such as
        a plural noun. The key of an entry is its condition, which says which vector was added. The
        last entry, `BEYOND_RANDOM`, is a difference: the share of the carried vector (computed in
        the source, mapped to the target, and scaled to the norm of the target's native vector),
        minus the share of a random vector.

        Args:
            effects: The steered effects, one for each condition, and the natural effect.
            level: The probability with which an interval covers its share.
        """
        conditions = list(self.result.details["condition"].unique())
        matched = conditions.index(MATCHED)  # the carried vector, with the norm of the native one
        random = conditions.index(RANDOM)
        value = effects.steered.value  # (conditions,)
        # Each jackknife replicate leaves out one part of the texts.
        replicates = effects.steered.replicates  # (conditions, replicates)
        # Lists as indices, so that the axis of conditions stays.
        value_beyond_random = value[[matched]] - value[[random]]
        replicates_beyond_random = replicates[[matched]] - replicates[[random]]
        with_difference = Jackknifed(
            torch.cat([value, value_beyond_random]),
            torch.cat([replicates, replicates_beyond_random]),
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
    """Return two jobs for each pair of models: one for each contrast that steering vectors make.

    A steering vector is added to states to move a model from one side of a contrast to the other.
    The contrasts are singular against plural ("number"), and statement against question
    ("question"). Vectors of "number" are tried as the settings say. Those of "question" differ: a
    question is no property of one word, so they are added at the contrasting word and all later
    tokens (`LATER`), never at the word alone. A further strength is tried, `QUESTION_STRENGTH`.
    """
    number_settings = experiment.config.measure_as(SteeringConfig)
    question_settings = replace(
        number_settings,
        contrast="question",
        positions=[LATER],
        strengths=[*number_settings.strengths, QUESTION_STRENGTH],
    )
    jobs = []
    for pair in pairs_of(experiment):
        for contrast, settings in (("number", number_settings), ("question", question_settings)):
            label = f"{contrast}, {pair.label}"
            arguments = (layers_argument(experiment, pair),)  # "layers=..." of the command line
            changes = {"measure": settings}
            jobs.append(InnerJob(label, models=pair, arguments=arguments, changes=changes))
    return jobs


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Judge all claims about steering vectors that are carried from one model to another.

    The vectors stand for two contrasts: singular against plural ("number"), and statement against
    question. The table has the effects of all vectors, with a column `contrast`.
    """
    claims: list[Claim] = []
    for pair in pairs_of(experiment):
        number_effects = SteeringEffects(pair, experiment.results[f"number, {pair.label}"])
        question_effects = SteeringEffects(pair, experiment.results[f"question, {pair.label}"])
        claims += [
            *_claims_about_number(number_effects),
            _claim_about_late_layers(number_effects),
            *_claims_about_questions(question_effects),
        ]
    tables = []
    for label, result in experiment.results.items():
        contrast, _, _ = label.partition(",")  # a label is such as "number, GPT-2 into BERT"
        tables.append(result.details.assign(contrast=contrast))

    def draw(folder: Path) -> None:
        """Draw one figure for each pair of models and contrast."""
        for label, result in experiment.results.items():
            file_name = label.replace(", ", "-").replace(" ", "-")
            draw_steering(result.details, folder, pairs_and_intervals(result), file_name)

    table = pd.concat(tables, ignore_index=True)
    # BLANK: the columns that may have empty cells.
    return Conclusion(table, claims, draw, blank=BLANK)


class ShareClaim(NamedTuple):
    """A claim about the effect of one vector, as a share of the natural effect.

    Attributes:
        text: The claim in words.
        condition: Which vector is added, or `BEYOND_RANDOM`.
        strength: What the vector is multiplied by.
        bound: Where the share must be for the claim to hold.
    """

    text: str
    condition: str
    strength: float
    bound: Bound


def _claims_about_number(steering: SteeringEffects) -> Iterator[Claim]:
    """Judge the claims about adding the direction from singular to plural at the noun.

    A claim is about the effect of a vector as a share of the natural effect, that of a plural noun
    in the text. The carried direction was computed in the source, and mapped to the target.
    """
    for claim in (
        ShareClaim(
            "the carried direction of number does .65 of what the plural does",
            CARRIED,
            strength=1.0,
            bound=Bound("above", 0.65),
        ),
        ShareClaim(
            "twice the carried direction of number does .9 of what the plural does",
            CARRIED,
            strength=2.0,
            bound=Bound("above", 0.9),
        ),
        ShareClaim(
            "a random vector of the same norm does next to nothing",
            RANDOM,
            strength=1.0,
            bound=NEARLY_NO_EFFECT,
        ),
        ShareClaim(
            "twice a random vector does next to nothing",
            RANDOM,
            strength=2.0,
            bound=NEARLY_NO_EFFECT,
        ),
        ShareClaim(
            "the negated carried direction does next to nothing",
            NEGATED,
            strength=1.0,
            bound=NEARLY_NO_EFFECT,
        ),
        ShareClaim(
            "of one norm the carried direction does more than a random one",
            BEYOND_RANDOM,
            strength=1.0,
            bound=ABOVE_ZERO,
        ),
    ):
        yield _judged_share_claim(claim, steering, NUMBER_DEPTH, "word")


def _claims_about_questions(steering: SteeringEffects) -> Iterator[Claim]:
    """Judge the claims about adding the direction from statement to question.

    A claim is about the effect of a vector as a share of the natural effect, that of a question in
    the text. The vector is added at the word and all later tokens. The native direction was
    computed in the target; the carried one in the source, and mapped to the target.
    `BEYOND_RANDOM` is the share of the carried vector, with the norm of the native one, minus that
    of a random vector.
    """
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
        ("a random vector of the same norm does next to nothing", RANDOM, NEARLY_NO_EFFECT),
        (
            "of one norm the carried direction does more than a random one",
            BEYOND_RANDOM,
            ABOVE_ZERO,
        ),
    ):
        claim = ShareClaim(text, condition, strength=QUESTION_STRENGTH, bound=bound)
        yield _judged_share_claim(claim, steering, QUESTION_DEPTH, LATER)


def _judged_share_claim(
    claim: ShareClaim, steering: SteeringEffects, depth: Fraction, position: str
) -> Claim:
    """Judge a claim about the effect of one steering vector, as a share of the natural effect.

    The natural effect is that of the text itself, such as a plural noun in place of a singular.
    The claim is untestable if the layers at this depth or the claim's strength were not measured,
    or if the natural effect is not above 0.

    Args:
        claim: The claim, with the strength of its vector, and the condition that names the vector:
            the target's own, for example, or one that was mapped from the source.
        steering: The effects of one contrast.
        depth: The relative depth of the layer of either model after which vectors are added.
        position: Where they are added: "word" or "later" (the word and all later tokens).
    """
    where = f"strength {claim.strength:g}"
    effects = None
    layer_pairs = steering.pair.layers([depth])
    if layer_pairs:  # empty if the number of a model's layers is unknown
        ((source_layer, target_layer),) = layer_pairs
        where = f"layer {source_layer} → {target_layer}, {where}"
        effects = steering.effects((source_layer, target_layer), position, claim.strength)
    claim_in_words = f"{steering.pair.label}, {where}: {claim.text}"
    if effects is None:
        reason = "these layers, this strength or a natural effect are not there"
        return untestable_claim(claim_in_words, reason)
    share = steering.shares(effects)[claim.condition]
    finding = f"share of the natural effect {share:.2f}"
    return judged_claim(claim_in_words, [(claim.bound, share)], finding, steering.units)


def _claim_about_late_layers(steering: SteeringEffects) -> Claim:
    """Judge the claim that in late layers not even the target's own direction works at the noun.

    The native direction, computed in the target from singular to plural, is added at the noun
    alone (the position "word"). In each layer of the second half it must have less than a tenth
    (`NEXT_TO_NOTHING`) of the effect of a plural noun. If so, the cause is not a bad map between
    the models, but that later tokens have already read the noun. Layer pairs without results are
    left out; if none is left, the claim is untestable.
    """
    claim = (
        f"{steering.pair.label}: beyond half of the blocks not even the native direction does a "
        "tenth at the noun"
    )
    layer_pairs = steering.pair.layers()  # at equal relative depth
    late_layer_pairs = layer_pairs[len(layer_pairs) // 2 :]
    effects_by_layers = {}
    for source_layer, target_layer in late_layer_pairs:
        effects = steering.effects((source_layer, target_layer), "word", strength=1.0)
        if effects is not None:
            effects_by_layers[source_layer, target_layer] = effects
    if not effects_by_layers:
        return untestable_claim(claim, "these layers are not there")

    count = len(effects_by_layers)
    level = bonferroni_level(count)
    bounds_and_estimates = []
    shares_in_words = []
    for (source_layer, target_layer), effects in effects_by_layers.items():
        # The effect of the native direction, as a share of that of a plural noun.
        share = steering.shares(effects, level)[NATIVE]
        bounds_and_estimates.append((Bound("below", NEXT_TO_NOTHING), share))
        shares_in_words.append(f"{source_layer}→{target_layer} {share:.2f}")
    finding = f"share: {', '.join(shares_in_words)}{bonferroni_note(count)}"
    return judged_claim(claim, bounds_and_estimates, finding, steering.units)


EXPERIMENTS = [
    Experiment(
        "chen2025/steering",
        _conclude,
        MODELS,
        _steering_jobs,
        "steering",
        accepted_model_counts=(2,),
    ),
]
