"""Feature profiles of BERT, GPT-2 and Mamba: figure 3 of Salle et al. 2024.

What the paper reads off its figures is stated here as a statistic of the feature profiles of a model's layers, taken on
each fold of the stimuli by itself, with an interval over the folds (`fold_interval`). Early and late are the first and
the last third of the layers; Mamba's change is looked for at 0.4 of its depth, layer 10 of 24 in the paper.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import figures, jobs
from thinkalike.config import AnalyzeConfig, compose_job
from thinkalike.errors import DataError
from thinkalike.measures import fold_interval
from thinkalike.reproduce.claims import Claim, conclude

log = logging.getLogger(__name__)

# by scale: BERT, GPT-2, Mamba; the minis in two seeds
MODELS = {
    "paper": ("bert-base-uncased", "gpt2", "mamba-130m"),
    "mini": ("bert-mini", "gpt2-mini", "mamba-mini", "bert-mini-s1", "gpt2-mini-s1", "mamba-mini-s1"),
}
TURN = 0.4  # of Mamba's depth, where word position becomes important
GOOD_SCORE = 0.7  # what MLEMs typically reach in the paper


@dataclass(frozen=True)
class Profiled:
    """A finished MLEM job of one model."""

    name: str
    folder: Path

    def table(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "table.csv")

    def scores(self) -> pd.DataFrame:
        return pd.read_csv(self.folder / "scores.csv")

    @property
    def features(self) -> list[str]:
        return list(dict.fromkeys(self.table()["feature"]))

    @property
    def importances(self) -> Float[Tensor, "k l f"]:
        """Of every feature in every layer on every fold."""
        return torch.from_numpy(np.load(self.folder / "arrays.npz")["importances"]).movedim(-1, 0)

    def of(self, feature: str) -> Float[Tensor, "k l"]:
        """Importance of a feature in every layer on every fold.

        Raises:
            DataError: the stimuli do not have it.
        """
        if feature not in self.features:
            raise DataError(
                f"the paper's claims are about {feature}, which these stimuli do not have; measure=mlem takes any"
            )
        return self.importances[..., self.features.index(feature)]

    @property
    def leading(self) -> list[str]:
        """The most important feature of each layer."""
        return [self.features[place] for place in self.importances.mean(0).argmax(-1)]

    @property
    def recurrent(self) -> bool:
        return self.name.startswith("mamba")


def figure3(config: AnalyzeConfig) -> Path:
    """Feature profiles over the layers of BERT, GPT-2 and Mamba."""
    found = profiled(config)
    transformers, recurrent = ([each for each in found if each.recurrent == side] for side in (False, True))
    claims = [
        *(_part_of_speech_leads(each) for each in transformers),
        *itertools.chain.from_iterable((_leads_at_the_ends(each), _position_rises(each)) for each in recurrent),
        *(_number_fades(each) for each in found),
        _predicts(found),
    ]
    scores = pd.concat([each.scores() for each in found], ignore_index=True)
    table = pd.concat([each.table() for each in found], ignore_index=True)

    def draw(table: pd.DataFrame, folder: Path) -> None:
        scores.to_csv(folder.parent / "scores.csv", index=False)
        figures.profiles(table, scores, folder)

    return conclude(config, {each.name: each.folder for each in found}, table, claims, draw)


def _part_of_speech_leads(model: Profiled) -> Claim:
    pos = model.of("PoS")
    others = model.importances[..., [name != "PoS" for name in model.features]]
    second = others.mean(0).argmax(-1)  # in each layer the strongest of the others
    lead = pos - others.gather(-1, second.expand(len(others), -1)[..., None])[..., 0]
    words = f"it is first in {model.leading.count('PoS')} of {len(model.leading)} layers; it leads the next by"
    return over_folds(f"PoS is the dominant feature of {model.name}", lead.mean(-1), words)


def _leads_at_the_ends(model: Profiled) -> Claim:
    leading = model.leading
    return Claim(
        f"PoS dominates only in the first and last layer of {model.name}",
        [name == "PoS" for name in leading] == [True, *[False] * (len(leading) - 2), True],
        "first by layer: " + ", ".join(leading),
    )


def _position_rises(model: Profiled) -> Claim:
    position = model.of("Word position")
    turn = round(TURN * position.shape[1])
    rise = position[:, turn:].mean(1) - position[:, :turn].mean(1)
    words = f"importance from layer {turn} on minus that before"
    return over_folds(f"word position gains importance midway in {model.name}", rise, words)


def _number_fades(model: Profiled) -> Claim:
    number = model.of("Number")
    third = max(number.shape[1] // 3, 1)
    fall = number[:, :third].mean(1) - number[:, -third:].mean(1)
    words = f"importance in the first {third} layers minus that in the last {third}"
    return over_folds(f"number fades from early to late layers of {model.name}", fall, words)


def over_folds(claim: str, statistic: Float[Tensor, " k"], words: str) -> Claim:
    """Holds if the statistic is above 0 beyond its interval."""
    mean, low, high = (float(value) for value in fold_interval(statistic))
    return Claim(claim, low > 0, f"{words} {mean:+.3f} ({low:+.3f} to {high:+.3f})")


def _predicts(found: Sequence[Profiled]) -> Claim:
    means = {each.name: each.scores()["score"].mean() for each in found}
    return Claim(
        f"MLEMs predict held-out distances, typically above {GOOD_SCORE}",
        bool(min(means.values()) > GOOD_SCORE),
        "mean Spearman's ρ over layers: " + ", ".join(f"{name} {value:.2f}" for name, value in means.items()),
    )


def profiled(config: AnalyzeConfig) -> list[Profiled]:
    """The MLEM jobs of all models, computed where the store lacks them."""
    found = []
    for number, name in enumerate(names := MODELS["mini" if config.scale == "mini" else "paper"], 1):
        log.info("profiles, %d of %d: %s", number, len(names), name)
        found.append(Profiled(name, jobs.mlem(job_of(config, name, name))))
    return found


def job_of(config: AnalyzeConfig, model: str, target: str) -> AnalyzeConfig:
    job = compose_job("analyze", [f"model={model}", f"model@target={target}"])
    kept = ("store", "measure", "stimuli", "seed", "recipe", "threads", "force")
    return replace(job, **{key: getattr(config, key) for key in kept})
