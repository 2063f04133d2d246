"""Feature profiles of BERT, GPT-2 and Mamba (figure 3 of Salle et al. 2024), and their probing words (S1, S5).

What the paper reads off its figures is stated here as a statistic of the feature profiles of a model's layers, taken on
each fold of the stimuli by itself, with an interval over the folds (`fold_interval`). Early and late are the first and
the last third of the layers; Mamba's change is looked for at 0.4 of its depth, layer 10 of 24 in the paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, counted, judged, level_of_each, together
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Model, Part
from thinkalike.data.grammar import derivations
from thinkalike.data.stimuli import from_sentences
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import DataError
from thinkalike.measures.estimates import fold_interval, jackknife, stimulus_folds
from thinkalike.store import Result

MODELS = {  # BERT, GPT-2, Mamba; the minis in two seeds
    "paper": ["bert-base-uncased", "gpt2", "mamba-130m"],
    "mini": ["bert-mini", "gpt2-mini", "mamba-mini", "bert-mini-s1", "gpt2-mini-s1", "mamba-mini-s1"],
}
TURN = 0.4  # of Mamba's depth, where word position becomes important
NEARLY = 0.9  # a correlation of features that are nearly the same
PARTS = 10  # of the stimuli, which an interval leaves out in turn


@dataclass(frozen=True)
class Profiles:
    """The feature profiles of one model, from the result of its job."""

    model: Model
    result: Result

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def family(self) -> str:
        """The architecture, which the configuration of a model of the user's own leaves open."""
        return str(self.result.provenance["models"][0]["family"])

    @property
    def recurrent(self) -> bool:
        return self.family == "mamba"

    @property
    def features(self) -> list[str]:
        return list(dict.fromkeys(self.result.table["feature"]))

    @property
    def importances(self) -> Float[Tensor, "k l f"]:
        return torch.from_numpy(self.result.arrays["importances"]).movedim(-1, 0)

    @property
    def scores(self) -> Float[Tensor, "k l"]:
        """Spearman's ρ of the held-out distances of every layer on every fold."""
        return torch.from_numpy(self.result.arrays["scores"]).T

    @property
    def share(self) -> str:
        """How much of its split-half reference the score is in the mean over layers; empty if none is known."""
        shares = self.result.tables["scores"].get("share", pd.Series(dtype=float))
        return f" ({shares.mean():.0%} of its split-half reference)" if shares.notna().any() else ""

    def of(self, feature: str) -> Float[Tensor, "k l"]:
        """Return the importance of a feature in every layer on every fold; see `place_of`."""
        return self.importances[..., place_of(feature, self.features)]

    @property
    def leading(self) -> list[str]:
        return [self.features[place] for place in self.importances.mean(0).argmax(-1)]


def place_of(feature: str, features: Sequence[str]) -> int:
    """Return the place of a feature that claims are about; one that the stimuli do not have is a DataError."""
    if feature not in features:
        raise DataError(f"claims are about {feature}, which these stimuli do not have; measure=mlem takes any")
    return list(features).index(feature)


def parts(case: Case) -> list[Part]:
    """Return the jobs that give the profiles of each model; the paper leaves out no word."""
    changes = {"measure": replace(case.config.measure, massive="keep")}  # type: ignore[call-arg]
    return [Part(model.name, (model,), changes=changes) for model in case.models]


def all_profiles(case: Case) -> list[Profiles]:
    return [Profiles(model, case.results[model.name]) for model in case.models]


def _figure3(case: Case) -> Conclusion:
    """Feature profiles over the layers of BERT, GPT-2 and Mamba."""
    profiles = all_profiles(case)
    recurrent = [each for each in profiles if each.recurrent]
    claims = [_part_of_speech_leads(each) for each in profiles if not each.recurrent]
    claims += [claim(each) for each in recurrent for claim in (_leads_at_the_ends, _position_rises)]
    claims += [*map(_number_fades, profiles), _predicts(profiles)]
    scores = pd.concat([each.result.tables["scores"] for each in profiles], ignore_index=True)
    table = pd.concat([each.result.table for each in profiles], ignore_index=True)
    return Conclusion(table, claims, partial(figures.profiles, table, scores), {"scores": scores})


def _part_of_speech_leads(model: Profiles) -> Claim:
    lead = lead_over_others(model.importances, model.features)
    words = f"it is first in {model.leading.count('PoS')} of {len(model.leading)} layers; it leads the next by"
    return over_folds(f"PoS is the dominant feature of {model.name}", lead.mean(-1), words)


def lead_over_others(importances: Float[Tensor, "k *l f"], features: Sequence[str]) -> Float[Tensor, " k *l"]:
    """Return by how much PoS is more important on each fold than the most important of the other features.

    Which one that is, is decided by the means over folds.
    """
    place = place_of("PoS", features)
    others = importances[..., [number for number in range(len(features)) if number != place]]
    second = others.mean(0, keepdim=True).argmax(-1, keepdim=True)
    return importances[..., place] - others.gather(-1, second.expand(*others.shape[:-1], 1))[..., 0]


def _leads_at_the_ends(model: Profiles) -> Claim:
    lead = lead_over_others(model.importances, model.features)
    layers = lead.shape[1]
    found = fold_interval(lead.T, level_of_each(layers))
    leads = ", ".join(f"{found[layer]:+.3f}" for layer in range(layers))
    return judged(
        f"PoS dominates only in the first and last layer of {model.name}",
        [(Bound("above"), found[[0, layers - 1]]), (Bound("below"), found[1:-1])],
        f"first by layer: {', '.join(model.leading)}; PoS leads the next by {leads}{together(layers)}",
        folds(lead),
    )


def _position_rises(model: Profiles) -> Claim:
    position = model.of("Word position")
    turn = round(TURN * position.shape[1])
    rise = position[:, turn:].mean(1) - position[:, :turn].mean(1)
    claim = f"word position gains importance midway in {model.name}"
    return over_folds(claim, rise, f"importance from layer {turn} on minus that before")


def _number_fades(model: Profiles) -> Claim:
    number = model.of("Number")
    third = max(number.shape[1] // 3, 1)
    fall = number[:, :third].mean(1) - number[:, -third:].mean(1)
    words = f"importance in the first {third} layers minus that in the last {third}"
    return over_folds(f"number fades from early to late layers of {model.name}", fall, words)


def over_folds(claim: str, statistic: Float[Tensor, " k"], words: str) -> Claim:
    """Return a claim that holds if the statistic is above 0 beyond its interval over folds."""
    mean = fold_interval(statistic)
    return judged(claim, [(Bound("above"), mean)], f"{words} {mean:+.3f}", folds(statistic))


def folds(statistic: Tensor) -> str:
    """Return over what the intervals of statistics (k, ...) of folds are."""
    return f"{len(statistic)} folds of the stimuli"


def _predicts(profiles: Sequence[Profiles]) -> Claim:
    layers = sum(each.scores.shape[1] for each in profiles)
    parts = [(Bound("above"), fold_interval(each.scores.T, level_of_each(layers))) for each in profiles]
    means = ", ".join(f"{each.name} {each.scores.mean():.2f}{each.share}" for each in profiles)
    numbers = f"mean Spearman's ρ over layers: {means}{together(layers)}"
    return judged("the features predict held-out distances in every layer", parts, numbers, folds(profiles[0].scores))


def _table_s1(case: Case) -> Conclusion:
    """The sentences of table S1, as the grammar derives them, beside the table."""
    with resources.as_file(resources.files("thinkalike.contrib.papers") / "table_s1.csv") as path:
        table = pd.read_csv(path, dtype=str, keep_default_na=False)
    texts = [" ".join(rows["word"]) for _, rows in table.groupby("sentence", sort=False)]
    stimuli = from_sentences([derivations(text)[0] for text in texts])
    made = stimuli.features.astype(object).map(printed)
    made.insert(0, "word", stimuli.words)
    same, rows = int((made == table[made.columns]).all(axis=1).sum()), f"{len(table)} rows"
    claim = counted("the grammar makes every row of table S1", same == len(table), f"{same} of {rows}", rows)
    return Conclusion(made, [claim])


def printed(value: Any) -> str:
    if pd.isna(value):
        return "NaN"
    return str(int(value)) if isinstance(value, float) else str(value)


def _figure_s5(case: Case) -> Conclusion:
    """Correlations of all features with all over pairs of probing words."""
    stimuli = read_stimuli(case.config.stimuli)
    correlation = stimuli.correlation()
    (a, b, _), *_ = correlation.strongest(1)
    pairs = ", ".join(f"{first} and {second} {value:+.2f}" for first, second, value in correlation.strongest(5))
    parts = min(PARTS, len(stimuli.groups.unique()))  # the words of one sentence are in one part
    part_of = stimulus_folds(len(stimuli), parts, groups=stimuli.groups)
    some = [stimuli, *(stimuli.take((part_of != part).numpy()) for part in range(parts))]
    values = torch.tensor([each.correlation().table.loc[a, b] for each in some])
    found = jackknife(values[0], values[1:])
    name, numbers = "no two features of the probing words are nearly the same", f"strongest correlations: {pairs}"
    units = f"{parts} parts of {len(stimuli)} words"
    claim = judged(name, [(Bound("within", NEARLY), found)], f"{numbers}; the first {found:+.2f}", units)
    table = correlation.table.rename_axis("feature").reset_index()
    return Conclusion(table, [claim], partial(figures.correlation, correlation.table))


NO_MODELS: dict[str, list[str]] = {"paper": [], "mini": []}  # these are about words alone
EXPERIMENTS = [
    Experiment("salle2024/figure3", _figure3, MODELS, parts, "mlem", takes=(1, 2)),
    Experiment("salle2024/figure_s5", _figure_s5, NO_MODELS, measure="mlem"),
    Experiment("salle2024/table_s1", _table_s1, NO_MODELS, measure="mlem", tabulates=True),
]
