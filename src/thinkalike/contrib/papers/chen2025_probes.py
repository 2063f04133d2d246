"""Probes that are carried from one model to another.

Source: Chen, Merullo, Stolfo & Pavlick, "Transferring linear features across language models with
model stitching" (NeurIPS 2025, arXiv 2506.06609). Where the paper gives no number, the claims name
thresholds of this project.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import pandas as pd
import torch

from thinkalike.contrib.figures.transfer import draw_probes
from thinkalike.contrib.papers.claims import (
    Bound,
    Claim,
    bonferroni_level,
    bonferroni_note,
    judged_claim,
    untestable_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.papers.model_pairs import MODELS, layers_argument, pairs_of
from thinkalike.contrib.transfer import probing
from thinkalike.contrib.transfer.probes import BLANK
from thinkalike.measures.accuracy import Accuracy
from thinkalike.measures.estimates import Estimate
from thinkalike.store import Result

PROBED_DEPTH = Fraction(1, 2)  # of the blocks

# The share of native accuracy above chance that carried probes keep at least.
LEAST_SHARE = {"PoS": 0.9, "Number": 0.9, "Question": 0.7, "Word position": 0.7}

# Features of single words, which a probe of other words does not know.
LEXICAL = ("Gender", "Person", "Word length", "Tense")
NEAR_CHANCE = 0.1  # in balanced accuracy
HALF_OF_NATIVE = 0.5  # of native accuracy above chance
REFITTED_SHARE = 0.9


@dataclass(frozen=True)
class ProbedLayers:
    """The accuracies of one layer pair, from the result of its job.

    Attributes:
        label: What claims call the models and their layers.
        result: The result.
        rows: The rows of its table that are of this layer pair, with their indices.
    """

    label: str
    result: Result
    rows: pd.DataFrame

    def accuracy(self, feature: str, condition: str, split: str = "sentence") -> Accuracy | None:
        """Return the accuracy of a probe, or None if it was not measured.

        It comes with jackknife replicates, the accuracies without one part of the stimuli at a
        time, from which intervals are computed.

        Args:
            feature: The feature that is probed.
            condition: Where the probe was fitted and which states it reads, such as
                "source to target".
            split: What was held out together: all words of a sentence, or all uses of a word.
        """
        is_match = (
            (self.rows["feature"] == feature)
            & (self.rows["condition"] == condition)
            & (self.rows["split"] == split)
        )
        matches = self.rows[is_match]
        if matches.empty:
            return None
        row = matches.iloc[0]  # there is only one
        replicates = torch.from_numpy(self.result.arrays["replicates"][matches.index[0]])
        return Accuracy(
            value=torch.tensor(float(row["accuracy"])).double(),
            replicates=replicates[~replicates.isnan()],  # a row with fewer of them ends in NaN
            effective_parts=float(row["effective_parts"]),
            levels=int(row["levels"]),
        )

    def share(self, feature: str, condition: str, level: float = 0.95) -> Estimate | None:
        """Return (accuracy - chance) / (native accuracy - chance) for probes of a feature.

        Returns None if one of the accuracies was not measured, or if the native accuracy is not
        above chance.

        Args:
            feature: The feature that is probed.
            condition: Where the probe was fitted and which states it reads. The native probe was
                fitted on the target model and reads its states.
            level: The level of the interval of the share.
        """
        accuracy = self.accuracy(feature, condition)
        native = self.accuracy(feature, probing.NATIVE)
        if accuracy is None or native is None:
            return None
        share = accuracy.share_of(native, above=native.chance, level=level)
        if share.value.isnan():  # the native accuracy is not above chance
            return None
        return share

    @property
    def features(self) -> list[str]:
        """The features that were probed, in the order of the table."""
        return list(dict.fromkeys(self.rows["feature"]))

    @property
    def units(self) -> str:
        """What intervals are over, in words."""
        return f"{self.rows['sentences'].max()} sentences"


def _probing_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for each pair of models, with probes of their middle layers.

    If the user has named layers, these are probed instead.
    """
    return [
        InnerJob(
            label=pair.label,
            models=pair,
            arguments=(layers_argument(experiment, pair, [PROBED_DEPTH]),),
        )
        for pair in pairs_of(experiment)
    ]


def _conclude(experiment: ExperimentRun) -> Conclusion:
    """Judge all claims about probes that are carried from one model to another.

    A carried probe was fitted on the source's states, and reads the target's states through a map.
    Claims are judged for each pair of layers; the table has the accuracies of all probes.
    """
    claims: list[Claim] = []
    for label, result in experiment.results.items():  # one for each pair of models
        by_layers = result.details.groupby(["source_layer", "target_layer"], sort=False)
        for (source_layer, target_layer), rows in by_layers:
            probed = ProbedLayers(f"{label}, layer {source_layer} → {target_layer}", result, rows)
            claims += [
                *_claims_about_context_features(probed),
                *_claims_about_word_features(probed),
                _claim_about_random_maps(probed),
                _claim_about_refitted_probes(probed),
            ]
    table = pd.concat(
        [result.details for result in experiment.results.values()], ignore_index=True
    )

    def draw(folder: Path) -> None:
        """Draw one figure for each pair of models."""
        for label, result in experiment.results.items():
            name = "probes" if len(experiment.results) == 1 else label.replace(" ", "-")
            draw_probes(result.details, folder, name)

    return Conclusion(table, claims, draw, blank=BLANK)  # the columns that may have empty cells


def _claims_about_context_features(probed: ProbedLayers) -> Iterator[Claim]:
    """Judge the claims that carried probes of features in context keep most of their accuracy.

    A carried probe was fitted on the source and reads the target's states through the map ψ from
    target to source. A native probe was fitted on the target. The features belong to a word in its
    context, such as its position, unlike features of the word alone. `LEAST_SHARE` has, for each
    of them, the share of a native probe's accuracy above chance that a carried probe must keep.
    """
    for feature, smallest_share in LEAST_SHARE.items():
        claim = (
            f"{probed.label}: a carried probe of {feature} keeps {smallest_share:g} of what a "
            "native one has above chance"
        )
        yield _share_claim(probed, claim, feature, Bound("above", smallest_share))


def _claims_about_word_features(probed: ProbedLayers) -> Iterator[Claim]:
    """Judge two claims about each feature that is a property of single words, such as gender.

    The first is that a native probe (fitted on the target) cannot know the feature of words on
    which it was not fitted: its accuracy on such words is near chance. The second is that a
    carried probe (fitted on the source, and applied to the target through a map) keeps less than
    half of the native accuracy above chance, on held-out sentences.

    Args:
        probed: The accuracies of probes at one layer pair.
    """
    for feature in LEXICAL:
        claim = (
            f"{probed.label}: {feature} is a matter of single words, unknown to a native probe of "
            "others"
        )
        # None: no probe of this feature was tested on held-out words.
        native = probed.accuracy(feature, probing.NATIVE, split="word")
        if native is None:
            yield untestable_claim(claim, f"{feature} is not judged on held-out words")
        else:
            excess = _excess_over_chance(native)
            finding = f"native accuracy on held-out words minus chance {excess:+.3f}"
            bounds_and_estimates = [(Bound("within", NEAR_CHANCE), excess)]
            yield judged_claim(claim, bounds_and_estimates, finding, probed.units)
        claim = (
            f"{probed.label}: a carried probe of {feature} keeps less than half of what a native "
            "one has"
        )
        yield _share_claim(probed, claim, feature, Bound("below", HALF_OF_NATIVE))


def _share_claim(probed: ProbedLayers, claim: str, feature: str, bound: Bound) -> Claim:
    """Judge a claim about (carried accuracy - chance) / (native accuracy - chance).

    A carried probe was fitted on the source model, a native one on the target. The claim is
    untestable if the feature was not probed, or if the native probe is not above chance.

    Args:
        probed: The accuracies at one layer pair.
        claim: The claim of the paper in words.
        feature: The feature that is probed.
        bound: Where the share must be for the claim to hold.
    """
    share = probed.share(feature, probing.CARRIED)
    if share is None:
        reason = "is not among these stimuli's features"
        if feature in probed.features:
            reason = "is not above chance"
        return untestable_claim(claim, f"{feature} {reason}")
    return judged_claim(claim, [(bound, share)], f"share {share:.2f}", probed.units)


def _claim_about_random_maps(probed: ProbedLayers) -> Claim:
    """Judge the claim that probes of the source are near chance if they read through random maps.

    Such a probe reads the target's states, mapped to the source. The random maps have the singular
    values of the fitted map, but random directions. The claim must hold for every feature that was
    probed in this way, so the intervals are widened to cover all of them together (Bonferroni).
    """
    level = bonferroni_level(len(probed.features))
    excesses = {}
    for feature in probed.features:
        accuracy = probed.accuracy(feature, probing.RANDOM)
        if accuracy is not None:  # None: this feature was not probed through random maps
            excesses[feature] = _excess_over_chance(accuracy, level)
    claim = "through random maps of the same spectrum probes are near chance"
    in_words = ", ".join(f"{name} {excess:+.2f}" for name, excess in excesses.items())
    return _claim_about_all_features(
        probed,
        claim,
        Bound("within", NEAR_CHANCE),
        excesses,
        f"accuracy minus chance: {in_words}",
    )


def _claim_about_refitted_probes(probed: ProbedLayers) -> Claim:
    """Judge the claim that mapped states still have the information that probes read.

    The target's states are mapped to the source by the affine map ψ. For every feature, a probe
    that is fitted on the mapped states must have at least `REFITTED_SHARE` of the accuracy above
    chance of a native probe, which is fitted on the target's states. Features whose native probe
    is not above chance are left out.
    """
    level = bonferroni_level(len(probed.features))
    shares = {}
    for feature in probed.features:
        share = probed.share(feature, probing.REFITTED, level)
        if share is not None:
            shares[feature] = share
    claim = (
        "maps lose directions, not information: probes refitted on what ψ makes have 0.9 of native"
    )
    in_words = ", ".join(f"{name} {share:.2f}" for name, share in shares.items())
    return _claim_about_all_features(
        probed, claim, Bound("above", REFITTED_SHARE), shares, f"share: {in_words}"
    )


def _claim_about_all_features(
    probed: ProbedLayers,
    claim: str,
    bound: Bound,
    estimates: Mapping[str, Estimate],
    finding: str,
) -> Claim:
    """Judge a claim that must hold for every feature.

    If `estimates` is empty, because no feature could be judged, the claim is untestable.

    Args:
        probed: The accuracies at one layer pair.
        claim: The claim in words, without the models and layers.
        bound: Where the estimate of each feature must be, such as above a limit.
        estimates: The estimate of each feature that was judged, by its name, with intervals that
            hold for all features together.
        finding: What was found, in words.
    """
    return judged_claim(
        f"{probed.label}: {claim}",
        [(bound, estimate) for estimate in estimates.values()],
        finding=f"{finding}{bonferroni_note(len(estimates))}",
        units=probed.units,
    )


def _excess_over_chance(accuracy: Accuracy, level: float = 0.95) -> Estimate:
    """Return accuracy - chance, with its interval."""
    value, low, high = accuracy.interval(level)
    chance = accuracy.chance
    return Estimate(value - chance, low - chance, high - chance)


EXPERIMENTS = [
    Experiment(
        "chen2025/probes", _conclude, MODELS, _probing_jobs, "probes", accepted_model_counts=(2,)
    ),
]
