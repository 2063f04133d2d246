"""The feature profiles of models that the figures of Salle et al. 2024 are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.papers.claims import ABOVE_ZERO, Claim, judged_claim
from thinkalike.contrib.papers.experiment import ExperimentRun, InnerJob
from thinkalike.errors import DataError
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.store import Result

# BERT, GPT-2, Mamba; the minis in two seeds.
MODELS = {
    "paper": ["bert-base-uncased", "gpt2", "mamba-130m"],
    "mini": [
        "bert-mini",
        "gpt2-mini",
        "mamba-mini",
        "bert-mini-s1",
        "gpt2-mini-s1",
        "mamba-mini-s1",
    ],
}
WEIGHTS = {  # that a profile is fitted with, by the setting `difference` of its measure
    "indicator": "one weight per feature",
    "scaled": "one weight per feature",
    "levels": "a weight for each two levels",
}
RECURRENT = "mamba"  # the family whose profiles change midway
TURN = 0.4  # of Mamba's depth, where word position becomes important: layer 10 of 24 in the paper


@dataclass(frozen=True)
class Profiles:
    """The feature profiles of one model, from the result of its job.

    Attributes:
        name: What claims call the model.
        result: The result.
    """

    name: str
    result: Result

    @property
    def family(self) -> str:
        """The architecture of the model, such as "mamba".

        It is read from the result, since the configuration of a user's own model may not state it.
        """
        return str(self.result.provenance["models"][0]["family"])

    @property
    def features(self) -> list[str]:
        """The names of the f features, in order."""
        return list(dict.fromkeys(self.result.details["feature"]))

    @property
    def importances(self) -> Float[Tensor, "k l f"]:
        """The importance of each feature in each layer, on each fold of the stimuli."""
        by_layer = torch.from_numpy(self.result.arrays["importances"])  # (l, f, k)
        return by_layer.movedim(-1, 0)

    @property
    def n_layers(self) -> int:
        """How many layers have a profile."""
        return self.importances.shape[1]

    @property
    def turn(self) -> int:
        """The layer, at 0.4 of the depth, where the profiles of a recurrent model change."""
        return round(TURN * self.n_layers)

    @property
    def scores(self) -> Float[Tensor, "k l"]:
        """Spearman's ρ of predicted and measured held-out distances, by fold and layer."""
        return torch.from_numpy(self.result.arrays["scores"]).T

    @property
    def reference_note(self) -> str:
        """A note on how near the model's scores are to the best possible ones, in brackets.

        It is such as " (87% of its split-half reference)", and stands behind the mean score.

        The score of a layer is Spearman's ρ of the distances between words that features predict
        and those that were measured. Features can only predict what words with the same features
        have in common. So the reference of a layer divides the words into two halves: for each two
        combinations of features it takes the mean distance of their words in either half, and its
        value is how well these means of both halves agree.

        The share of a layer is its score divided by its reference, and the note has the mean of
        the shares. Layers whose reference is not above 0 have no share and are left out. The text
        is empty if no layer has a share, or if references were not computed.
        """
        scores = self.result.tables["scores"]
        share_by_layer = scores.get("share_of_reference", pd.Series(dtype=float))
        if not share_by_layer.notna().any():
            return ""
        return f" ({share_by_layer.mean():.0%} of its split-half reference)"

    def importance_of(self, feature: str) -> Float[Tensor, "k l"]:
        """Return the importance of one feature on each of k folds, in each of l layers.

        Raises:
            DataError: The stimuli do not have the feature.
        """
        return self.importances[..., feature_index(feature, self.features)]

    @property
    def leading(self) -> list[str]:
        """The most important feature of each layer."""
        return [self.features[index] for index in self.importances.mean(0).argmax(-1)]


def feature_index(feature: str, features: Sequence[str]) -> int:
    """Return the index of a feature, such as "PoS" (part of speech), in the list of all features.

    Raises:
        DataError: The stimuli do not have the feature, so that the paper's claims about it cannot
            be tested on them.
    """
    if feature not in features:
        raise DataError(
            f"claims are about {feature}, which these stimuli do not have; measure=mlem takes any"
        )
    return list(features).index(feature)


def profile_jobs(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for each model, which computes its feature profile in every layer.

    A profile says how important each feature of words is for the distances between their states.
    """
    # Massive activations (huge states of a few words) are kept: the paper leaves out no word.
    measure = replace(experiment.config.measure_as(MLEMConfig), massive="keep")
    return [
        InnerJob(name, (model,), changes={"measure": measure})
        for name, model in experiment.models.items()
    ]


def profiles_of(experiment: ExperimentRun) -> list[Profiles]:
    """Return the profiles of each model of an experiment, in order."""
    return [Profiles(name, experiment.results[name]) for name in experiment.names]


def words_and_weights(profiles: Sequence[Profiles]) -> str:
    """Return what profiles were fitted on and with, such as "1,500 words, one weight per feature".

    It is the same for all models of an experiment.
    """
    result = profiles[0].result
    n_words = result.provenance["stimuli"]["count"]
    return f"{n_words:,} words, {WEIGHTS[result.config['measure']['difference']]}"


def lead_over_others(
    importances: Float[Tensor, "k *l f"], features: Sequence[str]
) -> Float[Tensor, " k *l"]:
    """Return, for each fold, the importance of part of speech (PoS) minus that of the runner-up.

    The runner-up is the feature, other than PoS, with the largest mean importance over folds. It
    is the same feature on all folds, but may differ between layers.

    Args:
        importances: The importance of each of f features on each of k folds. The axes *l, such
            as layers, are optional.
        features: The names of the features, in order.

    Raises:
        DataError: The stimuli do not have the feature PoS.
    """
    pos_index = feature_index("PoS", features)
    other_indices = [index for index in range(len(features)) if index != pos_index]
    others = importances[..., other_indices]
    mean_over_folds = others.mean(0, keepdim=True)
    runner_up_index = mean_over_folds.argmax(-1, keepdim=True)  # (1, *l, 1)
    index_on_each_fold = runner_up_index.expand(*others.shape[:-1], 1)  # (k, *l, 1)
    runner_up_importance = others.gather(-1, index_on_each_fold)[..., 0]
    return importances[..., pos_index] - runner_up_importance


def claim_over_folds(claim: str, statistic: Float[Tensor, " k"], statistic_name: str) -> Claim:
    """Judge the claim that the mean of a statistic over k folds of the stimuli is above 0.

    It holds if the interval of the mean lies above 0.

    Args:
        claim: The claim of the paper in words.
        statistic: The statistic on each fold.
        statistic_name: The statistic in words.
    """
    mean = fold_interval(statistic)
    finding = f"{statistic_name} {mean:+.3f}"
    return judged_claim(claim, [(ABOVE_ZERO, mean)], finding, units_of_folds(statistic))


def units_of_folds(statistic: Tensor) -> str:
    """Say how many folds the intervals of a statistic rest on; axis 0 holds the folds."""
    return f"{len(statistic)} folds of the stimuli"
