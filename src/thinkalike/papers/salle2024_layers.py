"""Likeness of layers, by feature profiles and by distances: figures 2 and 4 of Salle et al. 2024."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from thinkalike import figures
from thinkalike.data import Stimuli, read_stimuli
from thinkalike.errors import ConfigError
from thinkalike.instruments import rsa
from thinkalike.measures import mantel, matrix_agreement, mds, weighted_tau
from thinkalike.models import load_model
from thinkalike.papers.experiment import Case, Claim, Conclusion, Experiment, Part
from thinkalike.papers.salle2024_profiles import MODELS, TURN, Profiles, all_profiles, over_folds, parts
from thinkalike.papers.salle2024_stimuli import printed
from thinkalike.states import stimulus_states
from thinkalike.tables import matrix_rows

PAPER_AGREEMENT = 0.69  # Spearman's ρ of the two matrices of figure 2
WORDS_SHOWN = 300


@dataclass(frozen=True)
class Layers:
    """All layers of all models of a case, with their profiles."""

    rows: pd.DataFrame  # model, layer
    profiles: Float[Tensor, "l f"]
    one_family: Bool[Tensor, "l l"]  # which layers are of models of one architecture

    @classmethod
    def of(cls, profiles: Sequence[Profiles]) -> Layers:
        rows = pd.concat([each.result.tables["scores"][["model", "layer"]] for each in profiles], ignore_index=True)
        families = np.concatenate([[each.family] * each.importances.shape[1] for each in profiles])
        same = torch.from_numpy(families[:, None] == families)
        return cls(rows, torch.cat([each.importances.mean(0) for each in profiles]), same)


def _with_distances(case: Case) -> list[Part]:
    """Return the jobs of the profiles, and of the distances of every two models."""
    own = case.config.measure
    measure = rsa.Config(distance=own.distance, embed=own.embed)  # type: ignore[attr-defined]
    compared = [
        Part(f"{a.name}, {b.name}", (*a.words, *b.as_target()), changes={"measure": measure})
        for a, b in itertools.combinations(case.models, 2)
    ]
    return parts(case) + compared


def _figure2(case: Case) -> Conclusion:
    """Likeness of all layers by feature profiles (A), and by distances (B)."""
    profiles = all_profiles(case)
    layers = Layers.of(profiles)
    feature_based, agnostic = weighted_tau(layers.profiles), _distances(case, layers.rows)
    matrices = {"A: weighted τ of feature profiles": feature_based, "B: Spearman's ρ of distances": agnostic}
    tables = {title: matrix_rows(layers.rows, layers.rows, value=values) for title, values in matrices.items()}
    maps = {title: _map(values, layers.rows) for title, values in matrices.items()}
    claims = [_agree(feature_based, agnostic), *(_has_blocks(each) for each in profiles if each.recurrent)]
    if 1 < len({each.family for each in profiles}) < len(profiles):
        claims += [_seeds(matrices, layers)]
    table = pd.concat([part.assign(matrix=title[0]) for title, part in tables.items()], ignore_index=True)
    return Conclusion(table, claims, partial(figures.similarity, tables, maps=maps))


def _distances(case: Case, rows: pd.DataFrame) -> Float[Tensor, "l l"]:
    """Return RSA of all layers with all, gathered from the results of all pairs of models."""
    place = {key: number for number, key in enumerate(rows.itertuples(index=False, name=None))}
    values = torch.full((len(rows), len(rows)), torch.nan, dtype=torch.float64)
    for first, second in itertools.combinations(case.models, 2):
        cells = case.results[f"{first.name}, {second.name}"].table
        ends = [
            [place[key] for key in cells[[side, f"{side}_layer"]].itertuples(index=False, name=None)]
            for side in ("source", "target")
        ]
        values[tuple(ends)] = torch.tensor(cells["value"].to_numpy())
    return values


def _map(values: Float[Tensor, "l l"], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the layers in a plane, by 1 - likeness."""
    dissimilarity = 1 - (values + values.T) / 2
    points, stress = mds(dissimilarity.clamp(min=0).fill_diagonal_(0))
    return rows.assign(x=points[:, 0].numpy(), y=points[:, 1].numpy(), stress=float(stress))


def _agree(feature_based: Float[Tensor, "l l"], agnostic: Float[Tensor, "l l"]) -> Claim:
    rho = float(matrix_agreement(feature_based, agnostic))
    apart = [(1 - each).clamp(min=0).fill_diagonal_(0) for each in (feature_based, (agnostic + agnostic.T) / 2)]
    p = float(mantel(apart[:1], apart[1:], "precomputed")[1])
    return Claim(
        "feature-based and feature-agnostic likeness agree",
        rho > 0 and p < 0.05,
        f"Spearman's ρ of the two matrices {rho:.2f} (paper: {PAPER_AGREEMENT}), p {p:.3f} by Mantel's test",
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
    names, alike = layers.rows["model"].to_numpy(), layers.one_family.numpy()
    numbers, wins = [], []
    for title, values in matrices.items():
        same, different = (values.numpy()[where].mean() for where in (alike & (names[:, None] != names), ~alike))
        numbers.append(f"{title[0]}: {same:.2f} against {different:.2f}")
        wins.append(same > different)
    return Claim(
        "two seeds of one architecture are more alike than two architectures",
        all(wins),
        "mean likeness of their layers, " + "; ".join(numbers),
    )


def _figure4(case: Case) -> Conclusion:
    """The two layers of different architectures whose profiles are most alike, and the two least alike."""
    profiles = all_profiles(case)
    layers = Layers.of(profiles)
    if layers.one_family.all():
        names = " and ".join(each.name for each in profiles)
        raise ConfigError(f"experiment=salle2024/figure4 needs two architectures, and {names} are {profiles[0].family}")
    likeness = weighted_tau(layers.profiles)
    chosen = ~layers.one_family & torch.ones_like(layers.one_family).triu()
    places = {
        "most alike": int(likeness.where(chosen, -torch.inf).argmax()),
        "least alike": int(likeness.where(chosen, torch.inf).argmin()),
    }
    stimuli = read_stimuli(case.config.stimuli)
    contrasts = [_contrast(case, stimuli, word, place, layers, likeness) for word, place in places.items()]
    tables = [
        contrast.importance.assign(pair=word, first=contrast.names[0], second=contrast.names[1])
        for word, contrast in zip(places, contrasts, strict=True)
    ]
    recurrent = [each.name for each in profiles if each.recurrent]
    claims = [_shared_leader(contrasts[0]), _split_leader(contrasts[1], recurrent)]
    return Conclusion(pd.concat(tables, ignore_index=True), claims, partial(figures.scatter, contrasts))


def _contrast(
    case: Case, stimuli: Stimuli, word: str, place: int, layers: Layers, likeness: Float[Tensor, "l l"]
) -> figures.Contrast:
    ends = divmod(place, len(layers.rows))
    x, y = (layers.profiles[end] for end in ends)
    decisive = (x + y if word == "most alike" else (x - y).abs()).argmax()
    feature = stimuli.names[int(decisive)]
    first, second = ((str(layers.rows["model"][end]), int(layers.rows["layer"][end])) for end in ends)
    return figures.Contrast(
        f"{word}, τ = {float(likeness.flatten()[place]):+.2f}",
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
    levels = part.features[feature].astype(object).map(printed)
    return pd.DataFrame({"x": points[:, 0], "y": points[:, 1], "level": levels, "stress": float(stress)})


def _shared_leader(contrast: figures.Contrast) -> Claim:
    leaders = [str(contrast.importance.set_index("feature")[axis].idxmax()) for axis in "xy"]
    return Claim(
        "the most alike layers of two models share their most important feature, PoS",
        leaders == ["PoS", "PoS"],
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: GPT-2 layer 8 and BERT layer 4, "
        f"0.77): {leaders[0]} and {leaders[1]}",
    )


def _split_leader(contrast: figures.Contrast, recurrent: Sequence[str]) -> Claim:
    table = contrast.importance.set_index("feature")
    x, y = table.loc[contrast.feature]
    return Claim(
        "the least alike layers differ most in PoS, and one is of Mamba",
        contrast.feature == "PoS" and any(name.rpartition(" layer ")[0] in recurrent for name in contrast.names),
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: Mamba layer 8 and BERT layer 4, "
        f"-0.24): {contrast.feature} {x:.3f} and {y:.3f}",
    )


EXPERIMENTS = [
    Experiment("salle2024/figure2", _figure2, MODELS, _with_distances, "mlem", takes=(2,)),
    Experiment("salle2024/figure4", _figure4, MODELS, parts, "mlem", takes=(2,)),
]
