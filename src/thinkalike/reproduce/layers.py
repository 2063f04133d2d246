"""Likeness of layers, by feature profiles and by distances: figures 2 and 4 of Salle et al. 2024."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike import figures, jobs
from thinkalike.config import AnalyzeConfig, RSAConfig
from thinkalike.data import Stimuli
from thinkalike.jobs.mlem import matrix
from thinkalike.jobs.states import read_stimuli, stimulus_states
from thinkalike.measures import mantel, matrix_agreement, mds, weighted_tau
from thinkalike.models import load_model
from thinkalike.reproduce.claims import Claim, conclude
from thinkalike.reproduce.profiles import TURN, Profiled, job_of, over_folds, profiled
from thinkalike.reproduce.stimuli import printed

log = logging.getLogger(__name__)

PAPER_AGREEMENT = 0.69  # Spearman's ρ of the two matrices of figure 2
WORDS_SHOWN = 300


def figure2(config: AnalyzeConfig) -> Path:
    """Likeness of all layers by feature profiles (A), and by distances (B)."""
    found = profiled(config)
    rows, profiles = _layers(found)
    feature_based = weighted_tau(profiles)
    parts, agnostic = _distances(config, rows)
    matrices = {"A: weighted τ of feature profiles": feature_based, "B: Spearman's ρ of distances": agnostic}
    tables = {title: matrix(values, rows) for title, values in matrices.items()}
    maps = {title: _map(values, rows) for title, values in matrices.items()}
    table = pd.concat([part.assign(matrix=title[0]) for title, part in tables.items()], ignore_index=True)

    def draw(_: pd.DataFrame, folder: Path) -> None:
        figures.similarity(tables, folder, maps)

    claims = [_agree(feature_based, agnostic), *(_has_blocks(each) for each in found if each.recurrent)]
    if config.scale == "mini":
        claims += [_seeds(matrices, rows)]
    return conclude(config, {each.name: each.folder for each in found} | parts, table, claims, draw)


def _layers(found: Sequence[Profiled]) -> tuple[pd.DataFrame, Float[Tensor, "l f"]]:
    """Model, layer and profile of all layers of all models."""
    rows = pd.concat([each.scores()[["model", "layer"]] for each in found], ignore_index=True)
    return rows, torch.cat([each.importances.mean(0) for each in found])


def _distances(config: AnalyzeConfig, rows: pd.DataFrame) -> tuple[dict[str, Path], Float[Tensor, "l l"]]:
    """The RSA jobs of all pairs of models, and their matrices in one."""
    names = list(dict.fromkeys(rows["model"]))
    measure = RSAConfig(distance=config.measure.distance, embed=config.measure.embed)  # type: ignore[attr-defined]
    place = {key: number for number, key in enumerate(rows.itertuples(index=False, name=None))}
    parts, values = {}, torch.full((len(rows), len(rows)), torch.nan, dtype=torch.float64)
    for number, (first, second) in enumerate(pairs := list(itertools.combinations(names, 2)), 1):
        log.info("distances, %d of %d: %s and %s", number, len(pairs), first, second)
        folder = jobs.rsa(replace(job_of(config, first, second), measure=measure))
        parts[f"{first}, {second}"] = folder
        cells = pd.read_csv(folder / "table.csv")
        ends = [
            [place[key] for key in cells[[side, f"{side}_layer"]].itertuples(index=False, name=None)]
            for side in ("source", "target")
        ]
        values[tuple(ends)] = torch.from_numpy(cells["value"].to_numpy())
    return parts, values


def _map(values: Float[Tensor, "l l"], rows: pd.DataFrame) -> pd.DataFrame:
    """Layers in a plane, by 1 - likeness."""
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


def _has_blocks(model: Profiled) -> Claim:
    turn = round(TURN * model.importances.shape[1])
    late = torch.arange(model.importances.shape[1]) >= turn
    alike = (late[:, None] == late) & ~torch.eye(len(late), dtype=torch.bool)
    across = late[:, None] != late
    taus = torch.stack([weighted_tau(fold) for fold in model.importances])
    statistic = taus[:, alike].mean(1) - taus[:, across].mean(1)
    words = f"mean τ of two layers on one side of layer {turn} minus that across it"
    return over_folds(f"low and high layers of {model.name} are two blocks", statistic, words)


def _seeds(matrices: dict[str, Float[Tensor, "l l"]], rows: pd.DataFrame) -> Claim:
    """What only minis can say: how much of the difference is the architecture's, how much the seed's."""
    names, alike = rows["model"].to_numpy(), _one_architecture(rows)
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


def _one_architecture(rows: pd.DataFrame) -> np.ndarray:
    """Which layers are of models of one kind."""
    kind = rows["model"].str.split("-").str[0].to_numpy()
    return kind[:, None] == kind


def figure4(config: AnalyzeConfig) -> Path:
    """The two layers of different architectures whose profiles are most alike, and the two least alike."""
    found = profiled(config)
    rows, profiles = _layers(found)
    likeness = weighted_tau(profiles)
    chosen = torch.from_numpy(np.triu(~_one_architecture(rows)))
    pairs = {
        "most alike": int(likeness.where(chosen, -torch.inf).argmax()),
        "least alike": int(likeness.where(chosen, torch.inf).argmin()),
    }
    stimuli = read_stimuli(config.stimuli)
    contrasts, claims, table = [], [], []
    for word, place in pairs.items():
        ends = divmod(place, len(rows))
        contrast = _contrast(config, stimuli, word, ends, rows, profiles, float(likeness.flatten()[place]))
        contrasts.append(contrast)
        table.append(contrast.importance.assign(pair=word, first=contrast.names[0], second=contrast.names[1]))
    claims = [_shared_leader(contrasts[0]), _split_leader(contrasts[1])]
    return conclude(
        config,
        {each.name: each.folder for each in found},
        pd.concat(table, ignore_index=True),
        claims,
        lambda _, folder: figures.scatter(contrasts, folder),
    )


def _contrast(
    config: AnalyzeConfig,
    stimuli: Stimuli,
    word: str,
    ends: tuple[int, int],
    rows: pd.DataFrame,
    profiles: Float[Tensor, "l f"],
    tau: float,
) -> figures.Contrast:
    x, y = (profiles[end] for end in ends)
    decisive = (x + y if word == "most alike" else (x - y).abs()).argmax()
    feature = stimuli.names[int(decisive)]
    layers = [(str(rows["model"][end]), int(rows["layer"][end])) for end in ends]
    return figures.Contrast(
        f"{word}, τ = {tau:+.2f}",
        (f"{layers[0][0]} layer {layers[0][1]}", f"{layers[1][0]} layer {layers[1][1]}"),
        pd.DataFrame({"feature": stimuli.names, "x": x.numpy(), "y": y.numpy()}),
        (_words(config, stimuli, *layers[0], feature), _words(config, stimuli, *layers[1], feature)),
        feature,
    )


def _words(config: AnalyzeConfig, stimuli: Stimuli, model: str, layer: int, feature: str) -> pd.DataFrame:
    """Some words of a layer in a plane, with the levels of a feature."""
    part = stimuli.sample(min(WORDS_SHOWN, len(stimuli)), config.seed)
    loaded = load_model(job_of(config, model, model).model)
    states = stimulus_states(loaded, part)[layer].double()
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


def _split_leader(contrast: figures.Contrast) -> Claim:
    table = contrast.importance.set_index("feature")
    x, y = table.loc[contrast.feature]
    return Claim(
        "the least alike layers differ most in PoS, and one is of Mamba",
        contrast.feature == "PoS" and any(name.startswith("mamba") for name in contrast.names),
        f"{' and '.join(contrast.names)}, {contrast.title.split(', ')[1]} (paper: Mamba layer 8 and BERT layer 4, "
        f"-0.24): {contrast.feature} {x:.3f} and {y:.3f}",
    )
