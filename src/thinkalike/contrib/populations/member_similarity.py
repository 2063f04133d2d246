"""CKA of every two members of a population at each layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple, TypeAlias, TypedDict

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.contrib.populations.config import PopulationMeasureConfig
from thinkalike.contrib.populations.encoding import EncodedPairs
from thinkalike.errors import DataError
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import counted
from thinkalike.states.tokens import sites

FEWEST_BATCHES = 4  # if only the first token of each pair of sentences is compared


StatesByModel: TypeAlias = list[list[Float[Tensor, "n d"]]]
"""The states of the same n tokens, by model and by layer."""


class ReadPairs(TypedDict):
    """How much text the CKA of a population reads, as the provenance of a result says it."""

    tokens: str
    pairs: int
    rows_per_batch: int
    batches: int


class PopulationCKA(NamedTuple):
    """CKA of every two models at each layer.

    Attributes:
        value: CKA with its bias, as no interval is reported with it.
        hsics: The HSICs of each of b batches.
        read: How many pairs of sentences and tokens CKA comes from.
    """

    value: Float[Tensor, "m m l"]
    hsics: Float[Tensor, "b m m l"]
    read: ReadPairs


def similarity_of_members(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: PopulationMeasureConfig
) -> PopulationCKA:
    """Return the CKA of every two models of a population at each layer.

    CKA is computed in batches of tokens. If only the first token of each pair of sentences is
    compared, batches are small enough that there are at least four.

    Args:
        models: Classifiers of the same depth, which read pairs of sentences.
        encoded: The tokens of these pairs.
        measure: How many pairs and which of their tokens are compared, and the size of batches.

    Raises:
        DataError: There are too few pairs for one batch, or CKA is not defined for some states.
    """
    from thinkalike.measures.metric import CKA

    n_pairs = min(measure.cka_pairs or len(encoded), len(encoded))
    rows_per_batch = measure.tokens_per_batch
    if measure.tokens == "cls":
        rows_per_batch = min(rows_per_batch, n_pairs // FEWEST_BATCHES)

    # The metric compares all layers of one model with all of another. Here there is one metric for
    # each layer, and the models take the place of the metric's layers.
    n_models = len(models)
    metrics = [CKA(n_models, n_models) for _ in range(models[0].n_layers)]
    batches = _state_batches(models, encoded, measure, rows_per_batch, n_pairs)
    for states_by_model in counted(batches, "batch of CKA"):
        for layer, metric in enumerate(metrics):
            states = [states_by_layer[layer] for states_by_layer in states_by_model]
            try:
                metric.update(states, states)
            except ValueError as error:
                names = ", ".join(model.name for model in models)
                raise DataError(f"block {layer} of {names}: {error}") from error
    if not metrics[0].update_called:
        raise DataError(
            "too few pairs for measure.tokens_per_batch; lower it, or let CKA read more"
        )

    results = [metric.compute() for metric in metrics]
    value = torch.stack([result.with_bias for result in results], -1)
    # Later rows and columns of `hsics` belong to the second argument of `update`, the same states.
    hsics = torch.stack([result.hsics[:, :n_models, :n_models] for result in results], -1)
    read = ReadPairs(
        tokens=measure.tokens, pairs=n_pairs, rows_per_batch=rows_per_batch, batches=len(hsics)
    )
    return PopulationCKA(value, hsics, read)


def _state_batches(
    models: Sequence[FrozenModel],
    encoded: EncodedPairs,
    measure: PopulationMeasureConfig,
    rows_per_batch: int,
    n_pairs: int,
) -> Iterator[list[list[Float[Tensor, "n d"]]]]:
    """Yield states in batches of exactly `rows_per_batch` tokens, by model and by layer.

    A batch has a list for each model, with the states of the same tokens in each layer. Pairs of
    sentences have different numbers of tokens, so states wait until there are enough for a batch.
    Pairs are read in random order, so that batches differ by chance alone. Tokens that do not fill
    a last batch are dropped.

    Args:
        models: The classifiers that read the pairs.
        encoded: The tokens of all pairs.
        measure: Which tokens are read, and of how many pairs at once.
        rows_per_batch: How many tokens a batch has.
        n_pairs: How many pairs are read.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(len(encoded), generator=generator).tolist()[:n_pairs]
    # States that are in no batch yet. Each entry comes from pairs that were read together, and has
    # the states by model and by layer.
    waiting: list[list[list[Tensor]]] = []
    n_waiting = 0  # tokens
    for start in range(0, len(order), measure.batch):
        states = _states_of_pairs(
            models, encoded, order[start : start + measure.batch], measure.tokens
        )
        waiting.append(states)
        n_waiting += len(states[0][0])  # tokens, the same number for each model and layer
        while n_waiting >= rows_per_batch:
            joined = _joined(waiting)
            yield [[layer[:rows_per_batch] for layer in layers] for layers in joined]
            remaining = [[layer[rows_per_batch:] for layer in layers] for layers in joined]
            waiting = [remaining]
            n_waiting -= rows_per_batch


def _joined(waiting: Sequence[list[list[Tensor]]]) -> StatesByModel:
    """Return the states of all waiting pairs of sentences as one tensor, by model and layer.

    Args:
        waiting: For each read of some pairs, the states (n, d) by model and by layer. The number n
            of tokens differs between reads.
    """
    joined = []
    for states_of_model in zip(*waiting, strict=True):
        states_by_layer = zip(*states_of_model, strict=True)
        joined.append([torch.cat(states_of_layer) for states_of_layer in states_by_layer])
    return joined


def _states_of_pairs(
    models: Sequence[FrozenModel], encoded: EncodedPairs, rows: Sequence[int], tokens: str
) -> StatesByModel:
    """Return the states of the tokens of some pairs of sentences, by model and by layer.

    Args:
        models: The classifiers that read the pairs.
        encoded: The tokens of all pairs.
        rows: The indices of the pairs that are read.
        tokens: "all" for all tokens but padding, or "cls" for the first token of each pair.
    """
    batch = encoded.batch(rows)
    is_chosen = batch.mask.clone()
    if tokens == "cls":
        is_chosen[:, 1:] = False

    states_of_model = {}
    for model in dict.fromkeys(models):  # a model that is listed twice runs once
        states_by_layer = model.residuals(
            batch.tokens.long(), sites(model), batch.mask.long(), batch.types
        )
        # Indexing (pairs, tokens, d) with a mask gives (chosen tokens, d).
        states_of_model[model] = [
            states[is_chosen.to(states.device)].cpu() for states in states_by_layer
        ]
    return [states_of_model[model] for model in models]
