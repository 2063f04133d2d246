"""CKA within and between models: figures 3, 4, 5, 9, 10 and table 1 of Brown et al. 2023.

What the paper reads off its heatmaps is stated here as a statistic of their cells, with a
jackknife interval over documents; all jobs of an experiment see the same batches. Blocks of a
model with L layers are: early, its first L/8 (at least one; the paper's pythia-6.9b has 3 of
32); last, its final layer; middle, from L/4 to L - L/4.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from functools import partial

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import ModelConfig
from thinkalike.contrib.papers.claims import (
    ABOVE_ZERO,
    Bound,
    Claim,
    bonferroni_level,
    bonferroni_note,
    exact_claim,
    judged_claim,
)
from thinkalike.contrib.papers.experiment import Conclusion, Experiment, ExperimentRun, InnerJob
from thinkalike.figures.layers import layer_heatmaps
from thinkalike.instruments.layer_pairs.screen import amount_compared_in_words
from thinkalike.measures.estimates import Estimate, jackknife
from thinkalike.models.access import checkpoint_location
from thinkalike.models.checkpoints import named_folder, path_arguments
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.store import Result

Statistic = Callable[[Sequence[Tensor]], Tensor]
"""Returns a number for each batch entry, from the CKA matrices of some results, (..., l, m)."""
Names = tuple[str, str]
"""The names of a source and a target."""

NO_DIRECTION = 0.01  # of CKA: a smaller difference does not count

# Labels of blocks of layers.
EARLY_BLOCK = 0
MIDDLE_BLOCK = 1
LAST_BLOCK = 2


def jackknifed(statistic: Statistic, results: Sequence[Result], level: float = 0.95) -> Estimate:
    """Return a statistic of some CKA matrices with its jackknife interval over documents.

    Each result has its matrix for all documents ("value"), and one for each of several parts of
    the documents that is left out ("without"). All results are about the same text, so that these
    parts are the same.

    Args:
        statistic: Takes one matrix (l, m) for each result, with the CKA of the l layers of one
            model and the m layers of another, or one batch of them (parts, l, m) for each result.
        results: The results of CKA between some pairs of models.
        level: The probability with which the interval covers the statistic.
    """
    matrices = [torch.from_numpy(result.arrays["value"]) for result in results]
    matrices_without_part = [torch.from_numpy(result.arrays["without"]) for result in results]
    return jackknife(statistic(matrices), statistic(matrices_without_part), level=level)


def early_layers(n_layers: int) -> slice:
    """Return the early layers: the first eighth, at least one."""
    return slice(0, max(n_layers // 8, 1))


def middle_layers(n_layers: int) -> slice:
    """Return the middle layers: all but the first and the last quarter."""
    return slice(n_layers // 4, n_layers - n_layers // 4)


def mean_of_different_layers(cells: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b"]:
    """Return the mean CKA of two different layers, from the matrix of all layers of a model."""
    n_layers = cells.shape[-1]
    is_different = ~torch.eye(n_layers, dtype=torch.bool)
    return cells[..., is_different].mean(-1)


def block_structure(cells: Float[Tensor, "*b l l"]) -> Float[Tensor, "*b"]:
    """Return by how much layers of one block are more similar, by CKA, than layers of two blocks.

    A block is a group of layers: the early layers (the first eighth), the last layer, and all
    others. The result is the mean CKA of two different layers of one block, minus the mean CKA of
    two layers of different blocks.

    Args:
        cells: The CKA of any two layers of a model.
    """
    n_layers = cells.shape[-1]
    block_of_layer = torch.full((n_layers,), MIDDLE_BLOCK)
    block_of_layer[early_layers(n_layers)] = EARLY_BLOCK
    block_of_layer[-1] = LAST_BLOCK
    is_one_block = block_of_layer[:, None] == block_of_layer
    is_different = ~torch.eye(n_layers, dtype=torch.bool)
    within = cells[..., is_one_block & is_different].mean(-1)
    across = cells[..., ~is_one_block].mean(-1)
    return within - across


def one_sidedness(cells: Float[Tensor, "*b l m"]) -> Float[Tensor, "*b"]:
    """Return the mean over i < j of CKA(source i, target j) - CKA(source j, target i).

    It is 0 for a symmetric matrix. Both models have the same number of layers, l = m.
    """
    rows, columns = torch.triu_indices(cells.shape[-2], cells.shape[-1], 1)  # all i < j
    differences = cells - cells.mT
    return differences[..., rows, columns].mean(-1)


# ---- The jobs.


def _jobs_between(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for the CKA of each pair of different models."""
    return _cka_jobs(experiment, list(itertools.combinations(experiment.names, 2)))


def _jobs_within(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for the CKA of each model with itself."""
    return _cka_jobs(experiment, [(name, name) for name in experiment.names])


def _jobs_with_largest(experiment: ExperimentRun) -> list[InnerJob]:
    """Return one job for the CKA of each model with the last one, which is the largest."""
    return _cka_jobs(experiment, [(name, experiment.names[-1]) for name in experiment.names])


def _cka_jobs(experiment: ExperimentRun, pairs: Sequence[Names]) -> list[InnerJob]:
    """Return one inner job for the CKA of each pair of models; its label is "source, target".

    An inner job is one whose result the experiment rests on.

    Args:
        experiment: The experiment with its models.
        pairs: The names of the source and the target of each pair.
    """
    return [
        InnerJob(
            label=f"{source}, {target}",
            models=(experiment.models[source], experiment.models[target]),
        )
        for source, target in pairs
    ]


def _result_of_pair(experiment: ExperimentRun, names: Names) -> Result:
    """Return the result of the job for a source and a target.

    Args:
        experiment: The experiment with the results of its jobs, which have labels such as
            "source, target".
        names: The names of the source and of the target.
    """
    return experiment.results[", ".join(names)]


# ---- Claims.


def _interval_units(result: Result) -> str:
    """Say what intervals of a result are over."""
    return f"{len(result.arrays['without'])} parts of the documents"


def _claim_above_zero(
    claim: str,
    statistic: Statistic,
    experiment: ExperimentRun,
    pairs: Sequence[Names],
    statistic_name: str,
) -> Claim:
    """Judge the claim that a statistic of some CKA matrices is above 0.

    Its jackknife interval over documents decides.

    Args:
        claim: The claim in words.
        statistic: Takes the matrices of these pairs, in their order.
        experiment: The experiment with its results.
        pairs: The names of the source and the target of each pair.
        statistic_name: What the statistic is, in words.
    """
    results = [_result_of_pair(experiment, names) for names in pairs]
    value = jackknifed(statistic, results)
    finding = f"{statistic_name}: {value:+.4f}"
    return judged_claim(claim, [(ABOVE_ZERO, value)], finding, _interval_units(results[0]))


def _listed_pairs(pairs: Sequence[Names]) -> str:
    """Return the names of pairs of models as words."""
    return " and ".join(f"({source}, {target})" for source, target in pairs)


def _claim_that_model_is_odd(
    claim: str,
    experiment: ExperimentRun,
    pairs_without: Sequence[Names],
    pairs_with: Sequence[Names],
) -> Claim:
    """Judge the claim that the middle layers of one model, the odd one, are unlike all others.

    The statistic is the mean CKA of middle layers over pairs of models without the odd one, minus
    that over pairs with it. It must be above 0.

    Args:
        claim: The claim in words.
        experiment: The experiment with its results.
        pairs_without: The names of pairs of models without the odd one.
        pairs_with: The names of pairs of a model and the odd one.
    """

    def difference(matrices: Sequence[Tensor]) -> Tensor:
        """Return the mean over pairs without the odd model minus that over pairs with it.

        The matrices of the pairs without it come first.
        """
        means = []
        for matrix in matrices:
            n_source_layers, n_target_layers = matrix.shape[-2:]
            middle_cells = matrix[
                ..., middle_layers(n_source_layers), middle_layers(n_target_layers)
            ]
            means.append(middle_cells.mean((-2, -1)))
        mean_without = torch.stack(means[: len(pairs_without)]).mean(0)
        mean_with = torch.stack(means[len(pairs_without) :]).mean(0)
        return mean_without - mean_with

    pairs = [*pairs_without, *pairs_with]
    statistic_name = (
        f"mean CKA of middle layers of {_listed_pairs(pairs_without)} minus that of "
        f"{_listed_pairs(pairs_with)}"
    )
    return _claim_above_zero(claim, difference, experiment, pairs, statistic_name)


def _claim_that_early_layers_are_alike(experiment: ExperimentRun, pairs: Sequence[Names]) -> Claim:
    """Judge the claim that early layers of two models are more similar than layers in general.

    Args:
        experiment: The experiment with its results.
        pairs: The names of the source and the target of each pair of models.
    """

    def excess(matrices: Sequence[Tensor]) -> Tensor:
        """Return the mean CKA of two early layers minus that of any two, averaged over pairs."""
        excesses = []
        for matrix in matrices:
            n_source_layers, n_target_layers = matrix.shape[-2:]
            early_cells = matrix[..., early_layers(n_source_layers), early_layers(n_target_layers)]
            excesses.append(early_cells.mean((-2, -1)) - matrix.mean((-2, -1)))
        return torch.stack(excesses).mean(0)

    claim = "early layers are similar across sizes, more than layers are in general"
    statistic_name = f"mean CKA of early layers minus that of all, {_listed_pairs(pairs)}"
    return _claim_above_zero(claim, excess, experiment, pairs, statistic_name)


def _claim_that_layers_form_blocks(experiment: ExperimentRun, name: str) -> Claim:
    """Judge the claim that the layers of a model form three blocks: early, middle and last.

    Layers of one block must be more similar, by CKA, than layers of two blocks.
    """

    def structure(matrices: Sequence[Tensor]) -> Tensor:
        """Return the statistic of the only matrix, that of the model with itself."""
        return block_structure(matrices[0])

    statistic_name = "mean CKA of two layers of one block minus that of two blocks"
    claim = f"{name} has blocks: early, middle, last"
    return _claim_above_zero(claim, structure, experiment, [(name, name)], statistic_name)


def _claim_that_similarity_grows(experiment: ExperimentRun) -> Claim:
    """Judge the claim that the layers within a model are more similar the larger the model is.

    The models are in order of size. From each one to the next, the mean CKA of two different
    layers of the model must increase; the intervals hold for all increases together.
    """

    def increase(matrices: Sequence[Tensor]) -> Tensor:
        """Return the mean CKA of two different layers of the larger model minus the smaller."""
        of_smaller, of_larger = matrices
        return mean_of_different_layers(of_larger) - mean_of_different_layers(of_smaller)

    neighbours = list(itertools.pairwise(experiment.names))
    level = bonferroni_level(len(neighbours))
    results = {name: _result_of_pair(experiment, (name, name)) for name in experiment.names}
    bounds_and_estimates = []
    listed_increases = []
    for smaller, larger in neighbours:
        estimate = jackknifed(increase, [results[smaller], results[larger]], level)
        bounds_and_estimates.append((ABOVE_ZERO, estimate))
        listed_increases.append(f"{larger} minus {smaller} {estimate:+.4f}")
    any_result = results[experiment.names[0]]  # all results have the same documents
    return judged_claim(
        "the similarity of a model's layers grows with scale",
        bounds_and_estimates,
        finding=f"mean CKA of two different layers: {'; '.join(listed_increases)}"
        f"{bonferroni_note(len(neighbours))}",
        units=_interval_units(any_result),
    )


def _claim_that_cka_is_symmetric(experiment: ExperimentRun) -> Claim:
    """Judge the claim that CKA between a SoLU and a GeLU model is the same in both directions.

    The statistic is the mean CKA of an earlier SoLU layer with a later GeLU layer, minus that of
    the later SoLU layer with the earlier GeLU layer. Its interval, over documents, must be near 0.
    """

    def asymmetry_of(matrices: Sequence[Tensor]) -> Tensor:
        """Return the statistic of the only matrix, from the SoLU to the GeLU model."""
        return one_sidedness(matrices[0])

    solu, gelu = experiment.names
    result = _result_of_pair(experiment, (solu, gelu))
    asymmetry = jackknifed(asymmetry_of, [result])
    return judged_claim(
        "CKA between SoLU and GeLU shows no direction",
        [(Bound("within", NO_DIRECTION), asymmetry)],
        finding=f"an earlier layer of {solu} with a later one of {gelu}, minus the reverse: "
        f"{asymmetry:+.4f}",
        units=_interval_units(result),
    )


# ---- Figures.


def _conclusion(
    experiment: ExperimentRun, claims: Sequence[Claim], drawn_pairs: Sequence[Names]
) -> Conclusion:
    """Return the claims with a table of the CKA of all pairs of layers, and a figure of heatmaps.

    Args:
        experiment: The experiment with its results.
        claims: The judged claims.
        drawn_pairs: The names of the source and the target of each heatmap; they were compared.
    """
    table = pd.concat(
        [result.details for result in experiment.results.values()], ignore_index=True
    )
    # A result also has the layer pairs within its source and within its target, which recur.
    table = table.drop_duplicates(["source", "target", "source_layer", "target_layer"])
    tables_of_heatmaps = []
    for source, target in drawn_pairs:
        is_of_pair = (table["source"] == source) & (table["target"] == target)
        tables_of_heatmaps.append(table[is_of_pair])
    any_result = next(iter(experiment.results.values()))  # all have the same documents
    draw = partial(
        layer_heatmaps,
        pd.concat(tables_of_heatmaps),
        file="cka",
        label="CKA",
        about=amount_compared_in_words(any_result),
    )
    return Conclusion(table, claims, draw)


def _conclude_figure3(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 3 of Brown et al. 2023: CKA of each of four models with the last.

    The Pythia models are in order of size, and the largest is also compared with itself. The third
    is the odd one: it has a smaller head dimension, and the paper finds its middle layers less
    similar to those of the others.
    """
    first, second, odd, largest = experiment.names
    pair_of_first = (first, largest)
    pair_of_second = (second, largest)
    pair_of_odd = (odd, largest)
    claim = f"{odd} is less like {largest} in the middle layers than the others are"
    claims = [
        _claim_that_model_is_odd(
            claim, experiment, [pair_of_first, pair_of_second], [pair_of_odd]
        ),
        _claim_that_early_layers_are_alike(
            experiment, [pair_of_first, pair_of_second, pair_of_odd]
        ),
        _claim_that_layers_form_blocks(experiment, largest),
    ]
    if experiment.scale == "mini":
        # What the paper could not do: the second mini and the odd one, neox-5l-mini and
        # neox-5l-odd-mini, differ in nothing but the head dimension. So if the odd one is less
        # like the largest model than the second one is, the head dimension is the reason.
        controlled = (
            f"controlled: a smaller head dimension alone makes a model less like {largest} in the "
            "middle layers"
        )
        claims.append(
            _claim_that_model_is_odd(controlled, experiment, [pair_of_second], [pair_of_odd])
        )
    drawn_pairs = [pair_of_first, pair_of_second, pair_of_odd, (largest, largest)]
    return _conclusion(experiment, claims, drawn_pairs)


def _conclude_figure9(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 9 of Brown et al. 2023: CKA of all pairs of three Pythia models.

    The last of them is the odd one, which has a smaller head dimension. The paper finds its middle
    layers less similar to those of the others.
    """
    odd = experiment.names[2]
    pairs = list(itertools.combinations(experiment.names, 2))
    pairs_with_odd = [pair for pair in pairs if odd in pair]
    pairs_without_odd = [pair for pair in pairs if odd not in pair]
    claim = f"{odd} is less similar to the others than they are to each other in the middle layers"
    claims = [
        _claim_that_model_is_odd(claim, experiment, pairs_without_odd, pairs_with_odd),
        _claim_that_early_layers_are_alike(experiment, pairs),
    ]
    # The figure also shows each model with itself.
    drawn_pairs = list(itertools.combinations_with_replacement(experiment.names, 2))
    return _conclusion(experiment, claims, drawn_pairs)


def _conclude_figure10(experiment: ExperimentRun) -> Conclusion:
    """Judge the claims of figure 10 of Brown et al. 2023: CKA within models of increasing size.

    The layers of a larger model are claimed to be more similar to each other, and the layers of
    all models but the smallest to form blocks of similar layers.
    """
    claims = [_claim_that_similarity_grows(experiment)]
    all_but_smallest = experiment.names[1:]
    claims += [_claim_that_layers_form_blocks(experiment, name) for name in all_but_smallest]
    # The figure has a heatmap of each model's layers with each other.
    drawn_pairs = [(name, name) for name in experiment.names]
    return _conclusion(experiment, claims, drawn_pairs)


def _conclude_figures_4_and_5(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of figure 4 or 5 of Brown et al. 2023: CKA shows no direction.

    It says that CKA of an earlier layer of a SoLU model with a later layer of a GeLU model is the
    same as that of the later SoLU layer with the earlier GeLU layer. The figures differ only in
    the depth of these models: 3 layers or 4.
    """
    solu, gelu = experiment.names
    claims = [_claim_that_cka_is_symmetric(experiment)]
    drawn_pairs = [(gelu, gelu), (solu, solu), (solu, gelu)]
    return _conclusion(experiment, claims, drawn_pairs)


def _sizes_in_config_json(config: ModelConfig) -> dict[str, int]:
    """Read the sizes of a Hugging Face model from its config.json, without its weights.

    These are the number of layers, the width, the number of heads, and the dimensions of a head.
    The entry "rotary" is the number of dimensions of a head that rotary embeddings rotate; it is 0
    if config.json does not say which share they rotate.
    """
    from transformers import AutoConfig

    # `place` is a folder or the name of a repository, of which `commit` is the version.
    with explaining_loading_errors(config), checkpoint_location(config) as (place, commit):
        revision = None if named_folder(config) else commit
        hf_config = AutoConfig.from_pretrained(
            **path_arguments(place), revision=revision, trust_remote_code=False
        )
    d_head = hf_config.hidden_size // hf_config.num_attention_heads
    rope_parameters = getattr(hf_config, "rope_parameters", None) or {}
    rotary_share = rope_parameters.get("partial_rotary_factor", 0)
    return {
        "layers": hf_config.num_hidden_layers,
        "d_model": hf_config.hidden_size,
        "heads": hf_config.num_attention_heads,
        "d_head": d_head,
        "rotary": int(d_head * rotary_share),
    }


def _conclude_table1(experiment: ExperimentRun) -> Conclusion:
    """Judge the claim of table 1 of Brown et al. 2023: one model, the odd one, has smaller heads.

    Its attention heads have fewer dimensions, and rotary position embeddings rotate fewer of them.
    Among the published models it is pythia-2.8b. It is compared with the two next smaller models
    and with all larger ones. The table has the sizes of all models.
    """
    rows = [
        {"model": name, **_sizes_in_config_json(model)}
        for name, model in experiment.models.items()
    ]
    table = pd.DataFrame(rows)  # in order of size
    odd_name = "neox-5l-odd-mini" if experiment.scale == "mini" else "pythia-2.8b-deduped"
    odd_index = table.index[table["model"] == odd_name][0]
    odd = table.loc[odd_index]
    # The two next smaller models, the odd one, and all larger ones.
    about_its_size = table[odd_index - 2 :]
    others = about_its_size[about_its_size["model"] != odd_name]
    has_smaller_heads = (odd["d_head"] < others["d_head"]).all()
    has_smaller_rotary = (odd["rotary"] < others["rotary"]).all()
    claim = exact_claim(
        f"{odd_name} has smaller heads and rotary dimensions than models of about its size",
        bool(has_smaller_heads and has_smaller_rotary),
        finding=f"head dimension {odd['d_head']} against {sorted(others['d_head'])}, rotary "
        f"{odd['rotary']} against {sorted(others['rotary'])}",
        units=f"{len(about_its_size)} models",
    )
    return Conclusion(table, [claim])


def _pythia_names(*sizes: str) -> list[str]:
    """Return the names of deduplicated Pythia models of these sizes."""
    return [f"pythia-{size}-deduped" for size in sizes]


def _solu_and_gelu_names(depth: int) -> dict[str, list[str]]:
    """Return the names of the SoLU and the GeLU model of a depth, by scale."""
    return {
        "paper": [f"solu-{depth}l", f"gelu-{depth}l"],
        "mini": [f"solu-{depth}l-mini", f"gelu-{depth}l-mini"],
    }


# The odd one among the paper's models is pythia-2.8b; among the minis it is neox-5l-odd-mini.
FIGURE_3 = {
    "paper": _pythia_names("1b", "1.4b", "2.8b", "6.9b"),
    "mini": ["neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"],
}
FIGURE_9 = {scale: names[:3] for scale, names in FIGURE_3.items()}
FIGURE_10 = {
    "paper": _pythia_names("70m", "160m", "410m", "1b"),
    "mini": ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-6l-mini"],
}
TABLE_1 = {
    "paper": _pythia_names("70m", "160m", "410m", "1b", "1.4b", "2.8b", "6.9b", "12b"),
    "mini": ["neox-3l-mini", "neox-4l-mini", "neox-5l-mini", "neox-5l-odd-mini", "neox-6l-mini"],
}

EXPERIMENTS = [
    Experiment("brown2023/figure3", _conclude_figure3, FIGURE_3, _jobs_with_largest, "cka"),
    Experiment(
        "brown2023/figure4",
        _conclude_figures_4_and_5,
        _solu_and_gelu_names(3),
        _jobs_between,
        "cka",
    ),
    Experiment(
        "brown2023/figure5",
        _conclude_figures_4_and_5,
        _solu_and_gelu_names(4),
        _jobs_between,
        "cka",
    ),
    Experiment("brown2023/figure9", _conclude_figure9, FIGURE_9, _jobs_between, "cka"),
    Experiment(
        "brown2023/figure10",
        _conclude_figure10,
        FIGURE_10,
        _jobs_within,
        "cka",
        accepted_model_counts=(2,),
    ),
    Experiment("brown2023/table1", _conclude_table1, TABLE_1, prints_table=True),
]
