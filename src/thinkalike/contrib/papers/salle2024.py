"""Feature profiles of BERT, GPT-2 and Mamba, and how alike their layers are by profiles and by distances.

Figures 2, 3 and 4 of Salle et al. 2024, and their probing words (S1, S5). What the paper reads off its figures is
stated here as a statistic of the feature profiles of a model's layers, taken on each fold of the stimuli by itself,
with an interval over the folds (`fold_interval`). Early and late are the first and the last third of the layers;
Mamba's change is looked for at 0.4 of its depth, layer 10 of 24 in the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.contrib import figures
from thinkalike.contrib.papers.claims import Bound, Claim, counted, judged, level_of_each, over_models, together
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.contrib.papers.mds import mds
from thinkalike.data.grammar import derivations
from thinkalike.data.stimuli import Stimuli, from_sentences
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError, DataError
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.instruments.rsa.distances import RSAConfig
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.distances.ranks import spearman
from thinkalike.measures.distances.rsa import mantel
from thinkalike.measures.estimates import jackknife
from thinkalike.measures.folds import stimulus_folds
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import stimulus_states
from thinkalike.store import Result
from thinkalike.tables import matrix_rows

MODELS = {  # BERT, GPT-2, Mamba; the minis in two seeds
    "paper": ["bert-base-uncased", "gpt2", "mamba-130m"],
    "mini": ["bert-mini", "gpt2-mini", "mamba-mini", "bert-mini-s1", "gpt2-mini-s1", "mamba-mini-s1"],
}
RECURRENT = "mamba"
TURN = 0.4  # of Mamba's depth, where word position becomes important
NEARLY = 0.9  # a correlation of features that are nearly the same
PARTS = 10  # of the stimuli, which an interval leaves out in turn


@dataclass(frozen=True)
class Profiles:
    """The feature profiles of one model, from the result of its job."""

    name: str
    result: Result

    @property
    def family(self) -> str:
        """The architecture, which the configuration of a model of the user's own leaves open."""
        return str(self.result.provenance["models"][0]["family"])

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


def _parts(case: Case) -> list[Part]:
    """Return the jobs that give the profiles of each model; the paper leaves out no word."""
    changes = {"measure": replace(case.config.measure_as(MLEMConfig), massive="keep")}
    return [Part(name, (model,), changes=changes) for name, model in case.models.items()]


def all_profiles(case: Case) -> list[Profiles]:
    return [Profiles(name, case.results[name]) for name in case.names]


def _figure3(case: Case) -> Conclusion:
    """Feature profiles over the layers of BERT, GPT-2 and Mamba."""
    profiles = all_profiles(case)
    recurrent = [each for each in profiles if each.family == RECURRENT]
    claims = [_part_of_speech_leads(each) for each in profiles if each.family != RECURRENT]
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


# Likeness of layers, by feature profiles and by distances.

PAPER_AGREEMENT = 0.69  # Spearman's ρ of the two matrices of figure 2
WORDS_SHOWN = 300


@dataclass(frozen=True)
class Layers:
    """All layers of all models of a case, with their profiles."""

    rows: pd.DataFrame  # model, layer
    by_fold: Float[Tensor, "k l f"]  # the importance of each feature
    one_family: Bool[Tensor, "l l"]  # which layers are of models of one architecture

    @classmethod
    def of(cls, profiles: Sequence[Profiles]) -> Layers:
        rows = pd.concat([each.result.tables["scores"][["model", "layer"]] for each in profiles], ignore_index=True)
        families = np.concatenate([[each.family] * each.importances.shape[1] for each in profiles])
        same = torch.from_numpy(families[:, None] == families)
        return cls(rows, torch.cat([each.importances for each in profiles], 1), same)

    @property
    def profiles(self) -> Float[Tensor, "l f"]:
        return self.by_fold.mean(0)


def _with_distances(case: Case) -> list[Part]:
    own: Any = case.config.measure
    measure = RSAConfig(distance=own.distance, embed=own.embed, massive="keep", skip_first=own.skip_first)
    pairs = itertools.combinations(case.models.items(), 2)
    return _parts(case) + [Part(f"{a}, {b}", (x, y), changes={"measure": measure}) for (a, x), (b, y) in pairs]


def _figure2(case: Case) -> Conclusion:
    """Likeness of all layers by feature profiles (A), and by distances (B)."""
    profiles = all_profiles(case)
    layers = Layers.of(profiles)
    feature_based, agnostic = weighted_tau(layers.profiles), _distances(case, layers.rows)
    matrices = {"A: weighted τ of feature profiles": feature_based, "B: Spearman's ρ of distances": agnostic}
    tables = {title: matrix_rows(layers.rows, layers.rows, value=values) for title, values in matrices.items()}
    maps = {}
    for title, values in matrices.items():  # the layers in a plane, by 1 - likeness
        points, stress = mds((1 - (values + values.T) / 2).clamp(min=0).fill_diagonal_(0))
        maps[title] = layers.rows.assign(x=points[:, 0].numpy(), y=points[:, 1].numpy(), stress=float(stress))
    claims = [_agree(feature_based, agnostic, layers.rows["model"].tolist())]
    claims += [_has_blocks(each) for each in profiles if each.family == RECURRENT]
    if 1 < len({each.family for each in profiles}) < len(profiles):
        claims += [_seeds(matrices, layers)]
    table = pd.concat([part.assign(matrix=title[0]) for title, part in tables.items()], ignore_index=True)
    return Conclusion(
        table, claims, partial(figures.similarity, tables, below=lambda axes, title: figures.plane(axes, maps[title]))
    )


def _distances(case: Case, rows: pd.DataFrame) -> Float[Tensor, "l l"]:
    """Return RSA of all layers with all, gathered from the results of all pairs of models."""
    place = {key: number for number, key in enumerate(rows.itertuples(index=False, name=None))}
    values = torch.full((len(rows), len(rows)), torch.nan, dtype=torch.float64)
    for first, second in itertools.combinations(case.models, 2):
        for cell in case.results[f"{first}, {second}"].table.to_dict("records"):
            ends = place[cell["source"], cell["source_layer"]], place[cell["target"], cell["target_layer"]]
            values[ends] = cell["value"]
    return values


def _agree(feature_based: Float[Tensor, "l l"], agnostic: Float[Tensor, "l l"], models: Sequence[str]) -> Claim:
    def agreement(places: list[int]) -> Tensor:
        rows, columns = torch.triu_indices(len(places), len(places), 1)
        return spearman(*(each[places][:, places][rows, columns] for each in (feature_based, agnostic)))

    rho = over_models(agreement, models)
    apart = [(1 - each).clamp(min=0).fill_diagonal_(0) for each in (feature_based, (agnostic + agnostic.T) / 2)]
    p = float(mantel(apart[:1], apart[1:], "precomputed")[1])
    return judged(
        "feature-based and feature-agnostic likeness agree",
        [(Bound("above"), rho)],
        f"Spearman's ρ of the two matrices {rho:.2f} (paper: {PAPER_AGREEMENT}), p {p:.3f} by Mantel's test of layers",
        f"{len(set(models))} models",
    )


def _has_blocks(model: Profiles) -> Claim:
    turn = round(TURN * model.importances.shape[1])
    late = torch.arange(model.importances.shape[1]) >= turn
    alike = (late[:, None] == late) & ~torch.eye(len(late), dtype=torch.bool)
    across = late[:, None] != late
    taus = torch.stack([weighted_tau(fold) for fold in model.importances])
    statistic = taus[:, alike].mean(1) - taus[:, across].mean(1)
    words = f"mean τ of two layers on one side of layer {turn} minus that across it"
    return over_folds(f"low and high layers of {model.name} are two blocks", statistic, words)


def _seeds(matrices: dict[str, Float[Tensor, "l l"]], layers: Layers) -> Claim:
    """Say how much of the difference is the architecture's and how much the seed's, as only minis can."""
    names = np.array(layers.rows["model"].tolist())
    other = torch.from_numpy(names[:, None] != names)

    def gain(places: list[int]) -> Tensor:
        kinds = [kind[places][:, places] for kind in (layers.one_family & other, ~layers.one_family)]
        cells = [matrix[places][:, places] for matrix in matrices.values()]
        return torch.stack([each[kinds[0]].mean() - each[kinds[1]].mean() for each in cells])

    gains = over_models(gain, names.tolist(), level_of_each(len(matrices)))
    numbers = ", ".join(f"{title[0]}: {gains[place]:+.2f}" for place, title in enumerate(matrices))
    return judged(
        "two seeds of one architecture are more alike than two architectures",
        [(Bound("above"), gains)],
        f"mean likeness of their layers, one architecture minus two: {numbers}{together(len(matrices))}",
        f"{len(set(names))} models",
    )


def _figure4(case: Case) -> Conclusion:
    """The two layers of different architectures whose profiles are most alike, and the two least alike."""
    profiles = all_profiles(case)
    layers = Layers.of(profiles)
    if layers.one_family.all():
        names = " and ".join(each.name for each in profiles)
        raise ConfigError(f"experiment=salle2024/figure4 needs two architectures, and {names} are {profiles[0].family}")
    likeness, stimuli = weighted_tau(layers.profiles), read_stimuli(case.config.stimuli)
    chosen = ~layers.one_family & torch.ones_like(layers.one_family).triu()
    most, least = likeness.where(chosen, -torch.inf).argmax(), likeness.where(chosen, torch.inf).argmin()
    ends, contrasts, tables = [divmod(int(place), len(layers.rows)) for place in (most, least)], [], []
    for word, pair in zip(("most alike", "least alike"), ends, strict=True):
        contrast = _contrast(case, stimuli, f"{word}, τ = {float(likeness[pair]):+.2f}", pair, layers)
        contrasts.append(contrast)
        tables.append(contrast.importance.assign(pair=word, first=contrast.names[0], second=contrast.names[1]))
    alike, unlike = (layers.by_fold[:, list(pair)] for pair in ends)
    apart = unlike.diff(dim=1)[:, 0]
    apart = apart * apart.mean(0).sign()  # not the size on each fold, to which noise adds
    recurrent = [each.name for each in profiles if each.family == RECURRENT]
    claims = [
        _shared_leader(contrasts[0], lead_over_others(alike, stimuli.names)),
        _split_leader(contrasts[1], lead_over_others(apart, stimuli.names), recurrent),
    ]
    return Conclusion(pd.concat(tables, ignore_index=True), claims, partial(figures.scatter, contrasts))


def _contrast(case: Case, stimuli: Stimuli, title: str, ends: tuple[int, int], layers: Layers) -> figures.Contrast:
    x, y = (layers.profiles[end] for end in ends)
    decisive = (x + y if title.startswith("most") else (x - y).abs()).argmax()
    feature = stimuli.names[int(decisive)]
    first, second = ((str(layers.rows["model"][end]), int(layers.rows["layer"][end])) for end in ends)
    return figures.Contrast(
        title,
        (f"{first[0]} layer {first[1]}", f"{second[0]} layer {second[1]}"),
        pd.DataFrame({"feature": stimuli.names, "x": x.numpy(), "y": y.numpy()}),
        (_words(case, stimuli, *first, feature), _words(case, stimuli, *second, feature)),
        feature,
    )


def _words(case: Case, stimuli: Stimuli, name: str, layer: int, feature: str) -> pd.DataFrame:
    """Return some words of a layer in a plane, with the levels of a feature."""
    part = stimuli.sample(min(WORDS_SHOWN, len(stimuli)), case.config.seed)
    states = stimulus_states(load_model(case.models[name]), part)[layer].double()
    points, stress = mds(torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(0))
    levels = part.features[feature].astype(object).map(printed)
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "level": levels, "stress": float(stress)})


def _shared_leader(contrast: figures.Contrast, leads: Float[Tensor, "k 2"]) -> Claim:
    leaders = [str(contrast.importance.set_index("feature")[axis].idxmax()) for axis in "xy"]
    found = fold_interval(leads.T, level_of_each(2))
    return judged(
        "the most alike layers of two models share their most important feature, PoS",
        [(Bound("above"), found)],
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: GPT-2 layer 8 and BERT layer 4, "
        f"0.77): {leaders[0]} and {leaders[1]}; PoS leads the next by {found[0]:+.3f} and {found[1]:+.3f}{together(2)}",
        folds(leads),
    )


def _split_leader(contrast: figures.Contrast, lead: Float[Tensor, " k"], recurrent: Sequence[str]) -> Claim:
    table = contrast.importance.set_index("feature")
    (x, y), found = table.loc[contrast.feature], fold_interval(lead)
    claim = judged(
        "the least alike layers differ most in PoS, and one is of Mamba",
        [(Bound("above"), found)],
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: Mamba layer 8 and BERT layer 4, "
        f"-0.24): {contrast.feature} {x:.3f} and {y:.3f}; they differ in PoS by more than in the next by {found:+.3f}",
        folds(lead),
    )
    of_mamba = any(name.rpartition(" layer ")[0] in recurrent for name in contrast.names)
    return claim if of_mamba else replace(claim, verdict="does not hold")


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
    Experiment("salle2024/figure2", _figure2, MODELS, _with_distances, "mlem", takes=(2,)),
    Experiment("salle2024/figure3", _figure3, MODELS, _parts, "mlem", takes=(1, 2)),
    Experiment("salle2024/figure4", _figure4, MODELS, _parts, "mlem", takes=(2,)),
    Experiment("salle2024/figure_s5", _figure_s5, NO_MODELS, measure="mlem"),
    Experiment("salle2024/table_s1", _table_s1, NO_MODELS, measure="mlem", tabulates=True),
]
