"""Likeness of layers, by feature profiles and by distances: figures 2 and 4 of Salle et al. 2024."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike.contrib import figures
from thinkalike.contrib.papers import salle2024_profiles as base
from thinkalike.contrib.papers.claims import FAILS, Bound, Claim, judged, level_of_each, over_models, together
from thinkalike.contrib.papers.experiment import Case, Conclusion, Experiment, Part
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError
from thinkalike.instruments import rsa
from thinkalike.measures.distances.comparators import spearman, weighted_tau
from thinkalike.measures.distances.neural import mantel, mds
from thinkalike.measures.estimates import fold_interval
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import stimulus_states
from thinkalike.tables import matrix_rows

PAPER_AGREEMENT = 0.69  # Spearman's ρ of the two matrices of figure 2
WORDS_SHOWN = 300


@dataclass(frozen=True)
class Layers:
    """All layers of all models of a case, with their profiles."""

    rows: pd.DataFrame  # model, layer
    by_fold: Float[Tensor, "k l f"]  # the importance of each feature
    one_family: Bool[Tensor, "l l"]  # which layers are of models of one architecture

    @classmethod
    def of(cls, profiles: Sequence[base.Profiles]) -> Layers:
        rows = pd.concat([each.result.tables["scores"][["model", "layer"]] for each in profiles], ignore_index=True)
        families = np.concatenate([[each.family] * each.importances.shape[1] for each in profiles])
        same = torch.from_numpy(families[:, None] == families)
        return cls(rows, torch.cat([each.importances for each in profiles], 1), same)

    @property
    def profiles(self) -> Float[Tensor, "l f"]:
        return self.by_fold.mean(0)

    @property
    def models(self) -> list[str]:
        return [str(name) for name in self.rows["model"]]


def _with_distances(case: Case) -> list[Part]:
    own: Any = case.config.measure
    measure = rsa.RSAConfig(distance=own.distance, embed=own.embed, massive="keep", skip_first=own.skip_first)
    pairs = itertools.combinations(case.models, 2)
    return base.parts(case) + [Part(f"{a.name}, {b.name}", (a, b), changes={"measure": measure}) for a, b in pairs]


def _figure2(case: Case) -> Conclusion:
    """Likeness of all layers by feature profiles (A), and by distances (B)."""
    profiles = base.all_profiles(case)
    layers = Layers.of(profiles)
    feature_based, agnostic = weighted_tau(layers.profiles), _distances(case, layers.rows)
    matrices = {"A: weighted τ of feature profiles": feature_based, "B: Spearman's ρ of distances": agnostic}
    tables = {title: matrix_rows(layers.rows, layers.rows, value=values) for title, values in matrices.items()}
    maps = {}
    for title, values in matrices.items():  # the layers in a plane, by 1 - likeness
        points, stress = mds((1 - (values + values.T) / 2).clamp(min=0).fill_diagonal_(0))
        maps[title] = layers.rows.assign(x=points[:, 0].numpy(), y=points[:, 1].numpy(), stress=float(stress))
    claims = [_agree(feature_based, agnostic, layers.models)]
    claims += [_has_blocks(each) for each in profiles if each.recurrent]
    if 1 < len({each.family for each in profiles}) < len(profiles):
        claims += [_seeds(matrices, layers)]
    table = pd.concat([part.assign(matrix=title[0]) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.similarity, tables, maps=maps))


def _distances(case: Case, rows: pd.DataFrame) -> Float[Tensor, "l l"]:
    """Return RSA of all layers with all, gathered from the results of all pairs of models."""
    place = {key: number for number, key in enumerate(rows.itertuples(index=False, name=None))}
    values = torch.full((len(rows), len(rows)), torch.nan, dtype=torch.float64)
    for first, second in itertools.combinations(case.models, 2):
        for cell in case.results[f"{first.name}, {second.name}"].table.to_dict("records"):
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


def _has_blocks(model: base.Profiles) -> Claim:
    turn = round(base.TURN * model.importances.shape[1])
    late = torch.arange(model.importances.shape[1]) >= turn
    alike = (late[:, None] == late) & ~torch.eye(len(late), dtype=torch.bool)
    across = late[:, None] != late
    taus = torch.stack([weighted_tau(fold) for fold in model.importances])
    statistic = taus[:, alike].mean(1) - taus[:, across].mean(1)
    words = f"mean τ of two layers on one side of layer {turn} minus that across it"
    return base.over_folds(f"low and high layers of {model.name} are two blocks", statistic, words)


def _seeds(matrices: dict[str, Float[Tensor, "l l"]], layers: Layers) -> Claim:
    """Say how much of the difference is the architecture's and how much the seed's, as only minis can."""
    names = np.array(layers.models)
    other = torch.from_numpy(names[:, None] != names)

    def gain(places: list[int]) -> Tensor:
        kinds = [kind[places][:, places] for kind in (layers.one_family & other, ~layers.one_family)]
        cells = [matrix[places][:, places] for matrix in matrices.values()]
        return torch.stack([each[kinds[0]].mean() - each[kinds[1]].mean() for each in cells])

    gains = over_models(gain, layers.models, level_of_each(len(matrices)))
    numbers = ", ".join(f"{title[0]}: {gains[place]:+.2f}" for place, title in enumerate(matrices))
    return judged(
        "two seeds of one architecture are more alike than two architectures",
        [(Bound("above"), gains)],
        f"mean likeness of their layers, one architecture minus two: {numbers}{together(len(matrices))}",
        f"{len(set(layers.models))} models",
    )


def _figure4(case: Case) -> Conclusion:
    """The two layers of different architectures whose profiles are most alike, and the two least alike."""
    profiles = base.all_profiles(case)
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
    recurrent = [each.name for each in profiles if each.recurrent]
    claims = [
        _shared_leader(contrasts[0], base.lead_over_others(alike, stimuli.names)),
        _split_leader(contrasts[1], base.lead_over_others(apart, stimuli.names), recurrent),
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
    model = next(load_model(model.config) for model in case.models if model.name == name)
    states = stimulus_states(model, part)[layer].double()
    points, stress = mds(torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(0))
    levels = part.features[feature].astype(object).map(base.printed)
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "level": levels, "stress": float(stress)})


def _shared_leader(contrast: figures.Contrast, leads: Float[Tensor, "k 2"]) -> Claim:
    leaders = [str(contrast.importance.set_index("feature")[axis].idxmax()) for axis in "xy"]
    found = fold_interval(leads.T, level_of_each(2))
    return judged(
        "the most alike layers of two models share their most important feature, PoS",
        [(Bound("above"), found)],
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: GPT-2 layer 8 and BERT layer 4, "
        f"0.77): {leaders[0]} and {leaders[1]}; PoS leads the next by {found[0]:+.3f} and {found[1]:+.3f}{together(2)}",
        base.folds(leads),
    )


def _split_leader(contrast: figures.Contrast, lead: Float[Tensor, " k"], recurrent: Sequence[str]) -> Claim:
    table = contrast.importance.set_index("feature")
    (x, y), found = table.loc[contrast.feature], fold_interval(lead)
    claim = judged(
        "the least alike layers differ most in PoS, and one is of Mamba",
        [(Bound("above"), found)],
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: Mamba layer 8 and BERT layer 4, "
        f"-0.24): {contrast.feature} {x:.3f} and {y:.3f}; they differ in PoS by more than in the next by {found:+.3f}",
        base.folds(lead),
    )
    of_mamba = any(name.rpartition(" layer ")[0] in recurrent for name in contrast.names)
    return claim if of_mamba else replace(claim, verdict=FAILS)


EXPERIMENTS = [
    Experiment("salle2024/figure2", _figure2, base.MODELS, _with_distances, "mlem", takes=(2,)),
    Experiment("salle2024/figure4", _figure4, base.MODELS, base.parts, "mlem", takes=(2,)),
]
