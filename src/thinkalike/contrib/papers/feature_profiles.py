"""The feature profiles of models that the figures of Salle et al. 2024 are about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.papers.claims import Bound, Claim, judged_claim
from thinkalike.contrib.papers.experiment import Case, InnerJob
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
        """The architecture, which the configuration of a user's own model leaves open."""
        return str(self.result.provenance["models"][0]["family"])

    @property
    def features(self) -> list[str]:
        """The names of the f features, in order."""
        return list(dict.fromkeys(self.result.details["feature"]))

    @property
    def importances(self) -> Float[Tensor, "k l f"]:
        """The importance of each feature in each layer, on each fold of the stimuli."""
        return torch.from_numpy(self.result.arrays["importances"]).movedim(-1, 0)

    @property
    def n_layers(self) -> int:
        """How many layers have a profile."""
        return self.importances.shape[1]

    @property
    def turn(self) -> int:
        """The layer from which a recurrent model's profiles are different."""
        return round(TURN * self.n_layers)

    @property
    def scores(self) -> Float[Tensor, "k l"]:
        """Spearman's ρ of the held-out distances of every layer on every fold."""
        return torch.from_numpy(self.result.arrays["scores"]).T

    @property
    def reference_note(self) -> str:
        """What share of its split-half reference the mean score is; empty if none is known."""
        shares = self.result.tables["scores"].get("share_of_reference", pd.Series(dtype=float))
        if not shares.notna().any():
            return ""
        return f" ({shares.mean():.0%} of its split-half reference)"

    def of(self, feature: str) -> Float[Tensor, "k l"]:
        """Return the importance of a feature in every layer on every fold.

        Raises:
            DataError: The stimuli do not have the feature.
        """
        return self.importances[..., feature_index(feature, self.features)]

    @property
    def leading(self) -> list[str]:
        """The most important feature of each layer."""
        return [self.features[index] for index in self.importances.mean(0).argmax(-1)]


def feature_index(feature: str, features: Sequence[str]) -> int:
    """Return the index of a feature that claims are about.

    Raises:
        DataError: The stimuli do not have the feature.
    """
    if feature not in features:
        raise DataError(
            f"claims are about {feature}, which these stimuli do not have; measure=mlem takes any"
        )
    return list(features).index(feature)


def profile_jobs(case: Case) -> list[InnerJob]:
    """Return the jobs that compute the profiles of each model; the paper leaves out no word."""
    measure = replace(case.config.measure_as(MLEMConfig), massive="keep")
    return [
        InnerJob(name, (model,), changes={"measure": measure})
        for name, model in case.models.items()
    ]


def profiles_of(case: Case) -> list[Profiles]:
    """Return the profiles of each model of an experiment, in order."""
    return [Profiles(name, case.results[name]) for name in case.names]


def lead_over_others(
    importances: Float[Tensor, "k *l f"], features: Sequence[str]
) -> Float[Tensor, " k *l"]:
    """Return by how much PoS is more important on each fold than the runner-up.

    The runner-up is the feature, other than PoS, with the largest mean importance over folds.

    Args:
        importances: The importance of each of f features on each of k folds.
        features: The names of the features, in order.

    Raises:
        DataError: The stimuli do not have the feature PoS.
    """
    index = feature_index("PoS", features)
    others = importances[..., [other for other in range(len(features)) if other != index]]
    runner_up = others.mean(0, keepdim=True).argmax(-1, keepdim=True)
    runner_up_importance = others.gather(-1, runner_up.expand(*others.shape[:-1], 1))[..., 0]
    return importances[..., index] - runner_up_importance


def claim_over_folds(claim: str, statistic: Float[Tensor, " k"], words: str) -> Claim:
    """Return a claim that holds if the mean of a statistic over folds is above 0.

    Args:
        claim: What the paper says.
        statistic: The statistic on each fold; the claim rests on the interval of its mean.
        words: What the statistic is, in words that the mean follows.
    """
    mean = fold_interval(statistic)
    numbers = f"{words} {mean:+.3f}"
    return judged_claim(claim, [(Bound("above"), mean)], numbers, units_of_folds(statistic))


def units_of_folds(statistic: Tensor) -> str:
    """Return what the intervals of a statistic (k, ...) are over."""
    return f"{len(statistic)} folds of the stimuli"
