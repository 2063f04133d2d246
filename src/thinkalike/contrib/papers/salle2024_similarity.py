"""Similarity of layers by feature profiles and by distances: figures 2 and 4 of Salle et al. 2024.

Mamba's change is looked for at 0.4 of its depth, layer 10 of 24 in the paper.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from torch import Tensor

from thinkalike.contrib.figures.features import Contrast, draw_contrasts, draw_plane
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    FAILS,
    Claim,
    bonferroni_level,
    bonferroni_note,
    judged_claim,
    over_models,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.contrib.papers.feature_profiles import (
    MODELS,
    RECURRENT,
    Profiles,
    claim_over_folds,
    lead_over_others,
    profile_jobs,
    profiles_of,
    units_of_folds,
    words_and_weights,
)
from thinkalike.contrib.papers.mds import mds
from thinkalike.contrib.papers.salle2024_words import printed
from thinkalike.data.stimuli import Stimuli
from thinkalike.data.tables import read_stimuli
from thinkalike.errors import ConfigError
from thinkalike.figures.layers import similarity as draw_similarity
from thinkalike.instruments.mlem.settings import MLEMConfig
from thinkalike.instruments.rsa.distances import RSAConfig
from thinkalike.measures.distances.comparators import weighted_tau
from thinkalike.measures.distances.ranks import spearman
from thinkalike.measures.distances.rsa import mantel
from thinkalike.measures.mlem.importance import fold_interval
from thinkalike.models.load import load_model
from thinkalike.states.stimuli import stimulus_states
from thinkalike.tables import matrix_rows

PAPER_AGREEMENT = 0.69  # Spearman's ρ of the two matrices of figure 2, as the paper has it
WORDS_SHOWN = 300  # at most, in the figure of two layers


@dataclass(frozen=True)
class Layers:
    """All layers of all models of an experiment, with their profiles.

    Attributes:
        rows: The columns model and layer of each of l layers.
        by_fold: The importance of each of f features in each layer, on each of k folds.
        is_one_family: Which two layers are of models of one architecture.
    """

    rows: pd.DataFrame
    by_fold: Float[Tensor, "k l f"]
    is_one_family: Bool[Tensor, "l l"]

    @classmethod
    def of(cls, profiles: Sequence[Profiles]) -> Layers:
        """Return the l layers of all models together, in the order of the models.

        Each layer has the importance of f features on k folds of the stimuli. For every two layers
        it is known whether their models are of one family (architecture).

        Args:
            profiles: For each model, the importance of features in each of its layers.
        """
        tables = [model.result.tables["scores"][["model", "layer"]] for model in profiles]
        families = np.concatenate([[model.family] * model.n_layers for model in profiles])  # (l,)
        return cls(
            rows=pd.concat(tables, ignore_index=True),
            by_fold=torch.cat([model.importances for model in profiles], 1),  # (k, l, f)
            is_one_family=torch.from_numpy(families[:, None] == families),
        )

    @property
    def profiles(self) -> Float[Tensor, "l f"]:
        """The mean importance of each feature in each layer over folds."""
        return self.by_fold.mean(0)

    def layer_at(self, index: int) -> LayerOfModel:
        """Return the model and the number of one of the layers."""
        row = self.rows.iloc[index]
        return LayerOfModel(str(row["model"]), int(row["layer"]))


class LayerOfModel(NamedTuple):
    """A layer of a model, by the model's name."""

    model: str
    layer: int

    def __str__(self) -> str:
        """Return a name such as "GPT-2 layer 8".

        `_claim_that_pos_differs` takes the name of the model from it.
        """
        return f"{self.model} layer {self.layer}"


# ---- Figure 2.


def _jobs_with_distances(experiment: ExperimentRun) -> list[InnerJob]:
    """Return the jobs of figure 2 of Salle et al. 2024: feature profiles of models, and RSA.

    There is one job for each model, with the feature profiles of its layers: how important each
    feature of words is for the distances between their states. And there is one for each pair of
    models, with the RSA of their layers: how well the distances between words agree. RSA has the
    same settings as the profiles, and like them keeps massive activations (huge states of a few
    words).
    """
    measure = experiment.config.measure_as(MLEMConfig)
    rsa_settings = RSAConfig(
        distance=measure.distance,
        embed=measure.embed,
        massive="keep",
        skip_first=measure.skip_first,
    )
    jobs = profile_jobs(experiment)
    for source, target in itertools.combinations(experiment.models.items(), 2):
        source_name, source_model = source
        target_name, target_model = target
        jobs.append(
            InnerJob(
                f"{source_name}, {target_name}",
                (source_model, target_model),
                changes={"measure": rsa_settings},
            )
        )
    return jobs


def _conclude_figure2(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 2 of Salle et al. 2024: the similarity of all pairs of layers.

    Matrix A compares their feature profiles, and matrix B the distances between words (RSA). The
    claim that seeds of one architecture are similar is judged only if there are several
    architectures and one of them has two models. The figure shows both matrices, and below each
    one the layers as points of a plane.
    """
    profiles = profiles_of(experiment)
    layers = Layers.of(profiles)
    # Both are (l, l), for all l layers of all models.
    feature_based = weighted_tau(layers.profiles)
    agnostic = _rsa_matrix(experiment, layers.rows)  # it knows no features
    matrices = {
        "A: weighted τ of feature profiles": feature_based,
        "B: Spearman's ρ of distances": agnostic,
    }

    claims = [_claim_that_matrices_agree(feature_based, agnostic, layers.rows["model"].tolist())]
    claims += [
        _claim_that_profiles_form_blocks(model) for model in profiles if model.family == RECURRENT
    ]
    n_families = len({model.family for model in profiles})
    has_two_seeds = n_families < len(profiles)  # some family has several models
    if n_families > 1 and has_two_seeds:
        claims.append(_claim_that_seeds_are_alike(matrices, layers))

    tables = {
        title: matrix_rows(layers.rows, layers.rows, value=values)
        for title, values in matrices.items()
    }
    planes = {title: _layers_as_points(values, layers.rows) for title, values in matrices.items()}

    def draw_below(axes: Axes, title: str) -> None:
        """Draw the layers as points of a plane below the matrix of this title."""
        draw_plane(axes, planes[title])

    with_letters = [table.assign(matrix=title[0]) for title, table in tables.items()]  # A or B
    table = pd.concat(with_letters, ignore_index=True)
    about = words_and_weights(profiles)
    draw = partial(draw_similarity, tables, below=draw_below, about=about)
    return Conclusion(table, claims, draw)


def _layers_as_points(similarity: Float[Tensor, "l l"], rows: pd.DataFrame) -> pd.DataFrame:
    """Return the layers as points of a plane whose distances approximate 1 - similarity (MDS).

    The result is `rows` with the columns x, y and stress. The stress, the error of the
    approximation, is the same in all rows.

    Args:
        similarity: The similarity of any two of l layers; its two directions are averaged.
        rows: The model and the layer of each of these layers.
    """
    mean_of_directions = (similarity + similarity.T) / 2
    points, stress = mds(_dissimilarity(mean_of_directions))
    return rows.assign(x=points[:, 0].numpy(), y=points[:, 1].numpy(), stress=float(stress))


def _dissimilarity(similarity: Float[Tensor, "l l"]) -> Float[Tensor, "l l"]:
    """Return 1 - similarity, at least 0, with zeros on the diagonal."""
    return (1 - similarity).clamp(min=0).fill_diagonal_(0)


def _rsa_matrix(experiment: ExperimentRun, rows: pd.DataFrame) -> Float[Tensor, "l l"]:
    """Return the RSA of every two layers, from the results of all pairs of models.

    A result has all layers of its two models as rows and as columns, so the results of all pairs
    fill the matrix. The values within a model are in several results.

    Args:
        experiment: The experiment with the results of its jobs.
        rows: The model and the layer of each of l layers.
    """
    layers = rows.itertuples(index=False, name=None)  # (model, layer)
    index_of = {layer: index for index, layer in enumerate(layers)}
    values = torch.full((len(rows), len(rows)), torch.nan, dtype=torch.float64)
    for source, target in itertools.combinations(experiment.models, 2):
        for cell in experiment.results[f"{source}, {target}"].details.to_dict("records"):
            row = index_of[cell["source"], cell["source_layer"]]
            column = index_of[cell["target"], cell["target_layer"]]
            values[row, column] = cell["value"]
    return values


def _claim_that_matrices_agree(
    feature_based: Float[Tensor, "l l"], agnostic: Float[Tensor, "l l"], models: Sequence[str]
) -> Claim:
    """Judge the claim that two similarity matrices rank pairs of layers in the same order.

    The statistic is Spearman's ρ of the cells above the diagonal. Its interval is a jackknife that
    leaves out one model with all its layers at a time. The p-value of Mantel's test, which
    permutes layers, is reported beside it.

    Args:
        feature_based: The similarity of any two layers by their feature profiles.
        agnostic: Their similarity by RSA, without knowledge of features.
        models: The model of each layer.
    """

    def agreement(layers: list[int]) -> Tensor:
        """Return Spearman's ρ of the two matrices over the pairs of some layers."""
        rows, columns = torch.triu_indices(len(layers), len(layers), 1)
        feature_based_cells = feature_based[layers][:, layers]
        agnostic_cells = agnostic[layers][:, layers]
        return spearman(feature_based_cells[rows, columns], agnostic_cells[rows, columns])

    rho = over_models(agreement, models)
    # Mantel's test takes distances, which must be exactly symmetric.
    feature_based_distances = _dissimilarity(feature_based)
    agnostic_distances = _dissimilarity((agnostic + agnostic.T) / 2)
    p = mantel([feature_based_distances], [agnostic_distances], "precomputed").p
    return judged_claim(
        "feature-based and feature-agnostic similarity agree",
        [(ABOVE_ZERO, rho)],
        finding=f"Spearman's ρ of the two matrices {rho:.2f} (paper: {PAPER_AGREEMENT}), "
        f"p {float(p):.3f} by Mantel's test of layers",
        units=f"{len(set(models))} models",
    )


def _claim_that_profiles_form_blocks(model: Profiles) -> Claim:
    """Judge the claim that the layers of a recurrent model form two blocks of similar profiles.

    A profile is the importance of each feature (such as part of speech) in a layer. The blocks are
    the layers before `model.turn` (at 0.4 of the depth, where the paper sees profiles change) and
    those from it on. The statistic is the mean weighted Kendall's τ of the profiles of two
    different layers of one block, minus that of layers of two blocks. It is computed on each fold
    of the stimuli, and the interval is over folds.
    """
    is_late = torch.arange(model.n_layers) >= model.turn
    is_one_block = is_late[:, None] == is_late  # (l, l): both layers are early, or both are late
    is_different = ~torch.eye(model.n_layers, dtype=torch.bool)
    # `importances` is (folds, l, f), and τ compares every two of the l layers.
    taus = torch.stack([weighted_tau(fold) for fold in model.importances])  # (folds, l, l)
    within = taus[:, is_one_block & is_different].mean(1)
    across = taus[:, ~is_one_block].mean(1)
    claim = f"low and high layers of {model.name} are two blocks"
    statistic_name = f"mean τ of two layers on one side of layer {model.turn} minus that across it"
    return claim_over_folds(claim, within - across, statistic_name)


def _claim_that_seeds_are_alike(
    matrices: dict[str, Float[Tensor, "l l"]], layers: Layers
) -> Claim:
    """Judge the claim that two seeds of one architecture are more similar than two architectures.

    Two models of one architecture differ in their seed. The statistic, for each matrix, is the
    mean similarity of layers of two such models minus that of two architectures; the jackknife
    interval is over models.

    Args:
        matrices: Matrices of the similarity of any two layers, by titles such as "A: ...".
        layers: The model of each layer, and which layers are of one architecture.
    """
    models = np.array(layers.rows["model"].tolist())
    is_two_models = torch.from_numpy(models[:, None] != models)
    is_two_seeds = layers.is_one_family & is_two_models
    is_two_families = ~layers.is_one_family

    def gain(indices: list[int]) -> Tensor:
        """Return for each matrix the mean of two seeds minus that of two architectures.

        Args:
            indices: The layers whose cells are averaged.
        """
        two_seeds = is_two_seeds[indices][:, indices]
        two_families = is_two_families[indices][:, indices]
        gains = []
        for matrix in matrices.values():
            cells = matrix[indices][:, indices]
            gains.append(cells[two_seeds].mean() - cells[two_families].mean())
        return torch.stack(gains)

    gains = over_models(gain, models.tolist(), bonferroni_level(len(matrices)))
    panel_letters = [title[0] for title in matrices]
    gains_in_words = ", ".join(
        f"{letter}: {gains[index]:+.2f}" for index, letter in enumerate(panel_letters)
    )
    return judged_claim(
        "two seeds of one architecture are more similar than two architectures",
        [(ABOVE_ZERO, gains)],
        finding=f"mean similarity of their layers, one architecture minus two: {gains_in_words}"
        f"{bonferroni_note(len(matrices))}",
        units=f"{len(set(models))} models",
    )


# ---- Figure 4.


def _conclude_figure4(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 4 of Salle et al. 2024, about two pairs of layers.

    They are the layers of different architectures whose feature profiles are most similar, and
    those whose profiles are least similar. The figure shows the words in these layers as points.

    Raises:
        ConfigError: All models have one architecture.
    """
    profiles = profiles_of(experiment)
    layers = Layers.of(profiles)
    if layers.is_one_family.all():
        names = " and ".join(model.name for model in profiles)
        raise ConfigError(
            f"experiment=salle2024/figure4 needs two architectures, and {names} are "
            f"{profiles[0].family}"
        )
    stimuli = read_stimuli(experiment.config.stimuli)
    taus = weighted_tau(layers.profiles)  # (l, l)
    alike_pair, unlike_pair = _most_and_least_alike(taus, ~layers.is_one_family)

    # Words are coloured by the feature that is important in both layers, or by the one whose
    # importance differs most.
    first, second = layers.profiles[list(alike_pair)]
    title = f"most similar, τ = {float(taus[alike_pair]):+.2f}"
    alike = _layer_contrast(experiment, stimuli, title, alike_pair, layers, first + second)
    first, second = layers.profiles[list(unlike_pair)]
    title = f"least similar, τ = {float(taus[unlike_pair]):+.2f}"
    unlike = _layer_contrast(
        experiment, stimuli, title, unlike_pair, layers, (first - second).abs()
    )

    recurrent = [model.name for model in profiles if model.family == RECURRENT]
    lead_in_both = lead_over_others(layers.by_fold[:, list(alike_pair)], stimuli.names)
    differences = _differences_on_folds(layers, unlike_pair)
    claims = [
        _claim_that_leader_is_shared(alike, lead_in_both),
        _claim_that_pos_differs(unlike, lead_over_others(differences, stimuli.names), recurrent),
    ]
    tables = []
    for pair, contrast in (("most similar", alike), ("least similar", unlike)):
        first_name, second_name = contrast.names
        tables.append(contrast.importance.assign(pair=pair, first=first_name, second=second_name))
    table = pd.concat(tables, ignore_index=True)
    draw = partial(draw_contrasts, [alike, unlike], n_words=len(stimuli))
    return Conclusion(table, claims, draw)


def _differences_on_folds(layers: Layers, pair: tuple[int, int]) -> Float[Tensor, "k f"]:
    """Return how much two layers differ in the importance of each feature, on each of k folds.

    The sign is chosen for each feature so that the mean over folds is not negative. With absolute
    values on each fold, noise would add to the difference.

    Args:
        layers: The importance of the features in each layer.
        pair: The indices of the two layers.
    """
    first, second = layers.by_fold[:, list(pair)].unbind(1)  # (k, f) each
    difference = second - first
    return difference * difference.mean(0).sign()


def _most_and_least_alike(
    similarity: Float[Tensor, "l l"], is_eligible: Bool[Tensor, "l l"]
) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the indices of the two most similar layers, and of the two least similar ones.

    Args:
        similarity: The similarity of any two of l layers; it is symmetric.
        is_eligible: Which pairs of layers are considered: at least one.
    """
    n_layers = len(similarity)
    is_considered = is_eligible & torch.ones_like(is_eligible).triu()  # each pair once
    # Indices into the flattened matrix, which `divmod` turns into a row and a column.
    most_similar = similarity.where(is_considered, -torch.inf).argmax()
    least_similar = similarity.where(is_considered, torch.inf).argmin()
    return divmod(int(most_similar), n_layers), divmod(int(least_similar), n_layers)


def _layer_contrast(
    experiment: ExperimentRun,
    stimuli: Stimuli,
    title: str,
    pair: tuple[int, int],
    layers: Layers,
    score_of_feature: Float[Tensor, " f"],
) -> Contrast:
    """Return what a figure needs to show two layers side by side: profiles, and words as points.

    The profile of a layer is the importance of each of f features there.

    Args:
        experiment: The experiment, whose models are loaded to get the states of the words.
        stimuli: The words with their features.
        title: The title of the panel.
        pair: The indices of the two layers in `layers`.
        layers: All layers, with the profile of each.
        score_of_feature: A score of each feature. Words are coloured by their level of the feature
            with the largest score.
    """
    feature = stimuli.names[int(score_of_feature.argmax())]
    first_index, second_index = pair
    first = layers.layer_at(first_index)
    second = layers.layer_at(second_index)
    importance = pd.DataFrame(
        {
            "feature": stimuli.names,
            "x": layers.profiles[first_index].numpy(),
            "y": layers.profiles[second_index].numpy(),
        }
    )
    words = (
        _words_as_points(experiment, stimuli, first, feature),
        _words_as_points(experiment, stimuli, second, feature),
    )
    return Contrast(title, (str(first), str(second)), importance, words, feature)


def _words_as_points(
    experiment: ExperimentRun, stimuli: Stimuli, where: LayerOfModel, feature: str
) -> pd.DataFrame:
    """Return a sample of words as points of a plane, by the distances of their states (MDS).

    The columns are x, y, the level of the feature that each word has, and the stress (the error
    of the plane's distances), which is the same in all rows.

    Args:
        experiment: The experiment, whose model is loaded.
        stimuli: The words with their features, of which at most `WORDS_SHOWN` are drawn.
        where: The layer whose states are compared.
        feature: The name of the feature.
    """
    sample = stimuli.sample(min(WORDS_SHOWN, len(stimuli)), experiment.config.seed)
    model = load_model(experiment.models[where.model])
    states = stimulus_states(model, sample)[where.layer].double()  # (words, d)
    # Without matrix products, whose rounding would make distances asymmetric.
    distances = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist")
    points, stress = mds(distances.fill_diagonal_(0))
    levels = sample.features[feature].astype(object).map(printed)
    return pd.DataFrame(
        {"x": points[:, 0], "y": points[:, 1], "level": levels, "stress": float(stress)}
    )


def _tau_in_words(contrast: Contrast) -> str:
    """Return how similar two layers' profiles are, such as "τ = +0.77" (weighted Kendall's τ).

    It is the second half of the title, such as "most similar, τ = +0.77".
    """
    return contrast.title.split(", ")[1]


def _claim_that_leader_is_shared(contrast: Contrast, leads: Float[Tensor, "k 2"]) -> Claim:
    """Judge the claim that part of speech (PoS) is the top feature of the two most similar layers.

    The claim holds if the importance of PoS is above that of every other feature in both layers,
    on average over folds.

    Args:
        contrast: The two layers, and a table of the importance of each feature in the first layer
            (column "x") and in the second (column "y").
        leads: The importance of PoS minus that of the most important of the remaining features, on
            each of k folds, in each of the two layers.
    """
    importance = contrast.importance.set_index("feature")
    top_of_first = str(importance["x"].idxmax())
    top_of_second = str(importance["y"].idxmax())
    mean_leads = fold_interval(leads.T, bonferroni_level(2))  # one estimate for each layer
    layers = f"{' and '.join(contrast.names)}, {_tau_in_words(contrast)}"
    layers_of_paper = "GPT-2 layer 8 and BERT layer 4, 0.77"
    leads_in_words = f"PoS leads the next by {mean_leads[0]:+.3f} and {mean_leads[1]:+.3f}"
    return judged_claim(
        "the most similar layers of two models share their most important feature, PoS",
        [(ABOVE_ZERO, mean_leads)],
        finding=(
            f"{layers} (paper: {layers_of_paper}): {top_of_first} and {top_of_second}; "
            f"{leads_in_words}{bonferroni_note(2)}"
        ),
        units=units_of_folds(leads),
    )


def _claim_that_pos_differs(
    contrast: Contrast, lead: Float[Tensor, " k"], recurrent: Sequence[str]
) -> Claim:
    """Judge the claim that the two least similar layers differ most in part of speech (PoS).

    The paper also says that one of the layers is of Mamba, so the claim fails if neither layer is
    of a recurrent model, whatever the numbers are.

    Args:
        contrast: The two layers with the importance of each feature.
        lead: By how much more the layers differ in the importance of PoS than in that of the next
            feature, on each of k folds. Its mean must be above 0.
        recurrent: The names of recurrent models, such as Mamba.
    """
    # The finding names the feature in which these layers differ most; it need not be PoS. "x" and
    # "y" are the columns of the two layers.
    importance = contrast.importance.set_index("feature").loc[contrast.feature]
    mean_lead = fold_interval(lead)
    layers = f"{' and '.join(contrast.names)}, {_tau_in_words(contrast)}"
    layers_of_paper = "Mamba layer 8 and BERT layer 4, -0.24"
    most_different = f"{contrast.feature} {importance['x']:.3f} and {importance['y']:.3f}"
    claim = judged_claim(
        "the least similar layers differ most in PoS, and one is of Mamba",
        [(ABOVE_ZERO, mean_lead)],
        finding=(
            f"{layers} (paper: {layers_of_paper}): {most_different}; "
            f"they differ in PoS by more than in the next by {mean_lead:+.3f}"
        ),
        units=units_of_folds(lead),
    )
    models = [name.rpartition(" layer ")[0] for name in contrast.names]  # "Mamba layer 8"
    if any(model in recurrent for model in models):
        return claim
    return replace(claim, verdict=FAILS)


EXPERIMENTS = [
    Experiment(
        "salle2024/figure2",
        _conclude_figure2,
        MODELS,
        _jobs_with_distances,
        "mlem",
        accepted_model_counts=(2,),
    ),
    Experiment(
        "salle2024/figure4",
        _conclude_figure4,
        MODELS,
        profile_jobs,
        "mlem",
        accepted_model_counts=(2,),
    ),
]
