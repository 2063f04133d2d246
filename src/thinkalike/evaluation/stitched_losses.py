"""Losses of stitched models on text, summed by document, all on the same tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.data.rows import RowReader, TokenRows
from thinkalike.evaluation.batch_sizes import halve_until, rows_per_batch, tokens_per_batch
from thinkalike.evaluation.document_sums import DocumentSums
from thinkalike.evaluation.forward import last_states, next_token_losses, states_of_both
from thinkalike.measures.losses import CHUNK, compare_outputs
from thinkalike.measures.moments import LayerPair
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.processes import counted

STATE_COPIES = 6
"""So many states for each layer pair are in memory at once: the mapped states and those after the
last block, of two kinds of maps, and two copies of parts of them."""

StateMaps = Sequence[Callable[[Tensor], Tensor]]
"""One map from source states to target states for each layer pair."""


class Control(NamedTuple):
    """Maps, one for each layer pair, of the states of another model than the source."""

    model: RowReader[int]
    """What has the states."""

    maps: StateMaps

    replaces: Literal["source", "target"]
    """Whose tokens and layers the model reads."""


@dataclass(frozen=True)
class _Batch:
    """Rows of the evaluation text, with the states of both models."""

    rows: TokenRows

    source_states: list[Tensor]
    """(b, t, d) for each layer pair, at the target's tokens: what its maps read."""

    target_states: list[Tensor]
    """(b, t, e) for each layer pair: the target's states where the map's output enters it."""

    target_last: Tensor
    """(b, t, e): the target's states after its last block."""


@torch.no_grad()
def document_sums(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    maps: Mapping[str, StateMaps],
    rows: TokenRows,
    batch_rows: int,
    pairs_at_once: int | None = None,
    *,
    controls: Mapping[str, Control] | None = None,
) -> dict[str, Tensor]:
    """Run rows of text through all maps, and sum by document what they lose.

    Args:
        source: The model whose states the maps read.
        target: The model into which the maps' output enters.
        layer_pairs: The source's and the target's layer of each map.
        maps: One map for each layer pair, by name. Those of the name `stitch` are also compared
            with the target's output and states.
        rows: The rows of text, with the document of each token.
        batch_rows: How many rows are read together; this changes the memory and no value.
        pairs_at_once: How many layer pairs run together; None: all of them. This changes the
            memory and no value.
        controls: Further maps by name, of states of other models than the source.

    Returns:
        Sums over the predicted tokens of each document, in float64:

        - by the name of each map, its loss in nats, (layer pairs, documents);
        - `target` and `source`, the losses of the models themselves, (documents,), and the number
          of `tokens`. If tokenizers differ, `source` sums over the source's tokens, whose number
          is `source_tokens`;
        - for `stitch`, (layer pairs, documents): `kl` to the target's output in nats, `top1`
          agreements with it, and with t the target's state and φ(h) the mapped one
          `distance` = |φ(h) - t| / |t| and `norm` = |φ(h)| / |t|; and `penultimate`, that distance
          after the last block.
    """
    sums = DocumentSums(rows.documents)
    source_layers = [layer for layer, _ in layer_pairs]
    target_layers = [layer for _, layer in layer_pairs]
    groups = torch.arange(len(layer_pairs)).split(pairs_at_once or len(layer_pairs))
    pair_groups = [group.tolist() for group in groups]

    for batch_of_rows in rows.batches(batch_rows):
        source_states, target_states = states_of_both(
            source,
            target,
            batch_of_rows,
            [*source_layers, source.n_layers - 1],
            [*target_layers, target.n_layers - 1],
        )
        source_last = source_states.pop()
        target_last = target_states.pop()
        batch = _Batch(
            batch_of_rows, batch_of_rows.align(source_states), target_states, target_last
        )

        (target_loss,) = next_token_losses(target, [target_last], batch_of_rows.tokens)
        source_losses = {"source": target_loss}
        if source_last is not target_last:  # unless one model is stitched into itself
            source_losses["source"] = next_token_losses(
                source, [source_last], batch_of_rows.source_tokens
            )[0]
        if batch_of_rows.source is not None:
            source_losses["source_tokens"] = torch.ones_like(source_losses["source"])

        losses = {"target": target_loss, "tokens": torch.ones_like(target_loss)}
        for name, state_maps in counted(maps.items(), "map"):
            losses |= _losses_of_maps(target, name, state_maps, layer_pairs, batch, pair_groups)
        for name, control in counted((controls or {}).items(), "control"):
            states = _states_of_control(control, target, layer_pairs, batch)
            control_batch = replace(batch, source_states=states)
            losses |= _losses_of_maps(
                target, name, control.maps, layer_pairs, control_batch, pair_groups
            )

        _add_losses(sums, batch_of_rows.source_documents, source_losses)
        _add_losses(sums, batch_of_rows.documents, losses)
    return sums


def _add_losses(sums: DocumentSums, documents: Tensor, losses: Mapping[str, Tensor]) -> None:
    """Add losses to the sums of their documents, for all tokens but the first of each row.

    The first has no loss: no token before it predicts it.

    Args:
        sums: The sums by document, which are changed in place.
        documents: The index of the document of each token, (b, t).
        losses: The losses of the tokens after the first by name, (b, t - 1), or (pairs, b, t - 1)
            for several layer pairs.
    """
    flat_losses = {name: values.flatten(-2) for name, values in losses.items()}
    sums.add(documents[:, 1:].flatten(), flat_losses)


def _states_of_control(
    control: Control, target: FrozenModel, layer_pairs: Sequence[LayerPair], batch: _Batch
) -> list[Tensor]:
    """Return the states that the maps of a control read, (b, t, d) for each layer pair.

    A control is a set of maps into the target that read a model other than the source, such as one
    with random weights, or the target itself. There is one state for each token of the target.

    Args:
        control: The control. If its model replaces the source, it reads the source's tokens and
            layers; otherwise those of the target.
        target: The target, whose states the batch has already.
        layer_pairs: The source's and the target's layer of each map.
        batch: The rows, with the states of both models.
    """
    if control.replaces == "source":
        source_layers = [layer for layer, _ in layer_pairs]
        return batch.rows.source_states(control.model, source_layers)
    if control.model is target:
        return batch.target_states  # no second pass of the target
    target_layers = [layer for _, layer in layer_pairs]
    return control.model.residuals(batch.rows.tokens, target_layers)


def _losses_of_maps(
    target: FrozenModel,
    name: str,
    maps: StateMaps,
    layer_pairs: Sequence[LayerPair],
    batch: _Batch,
    pair_groups: Sequence[list[int]],
) -> dict[str, Float[Tensor, "pairs b u"]]:
    """Return the losses of the maps of one name, on the CPU, for each layer pair.

    The loss is that of the target if a map's output replaces the output of its block, at each
    token of b rows but the first (u of them). The result has one entry, of the name of the maps.
    For the name `stitch` it also has the KL divergence and the distances from the target's own
    output and states.

    Args:
        target: The model into which the maps' output enters.
        name: The name of the maps.
        maps: One map for each layer pair.
        layer_pairs: The layer pairs.
        batch: Rows with the states of both models.
        pair_groups: The indices of the layer pairs that run together, group by group, in order.
    """
    losses_of_groups = []
    for pair_indices in pair_groups:
        mapped_states = []
        entering = []
        for pair in pair_indices:
            mapped = maps[pair](batch.source_states[pair].to(target.device))
            _, target_layer = layer_pairs[pair]
            mapped_states.append(mapped)
            entering.append((target_layer, mapped))
        stitched_last = last_states(target, entering)

        if name == "stitch":
            target_states = [batch.target_states[pair] for pair in pair_indices]
            losses = _stitch_losses(target, mapped_states, target_states, stitched_last, batch)
        else:
            loss = next_token_losses(target, stitched_last, batch.rows.tokens)
            losses = {name: torch.stack(loss)}
        losses_of_groups.append({key: values.cpu() for key, values in losses.items()})

    joined = {}
    for key in losses_of_groups[0]:
        joined[key] = torch.cat([losses[key] for losses in losses_of_groups])
    return joined


def _stitch_losses(
    target: FrozenModel,
    mapped_states: list[Tensor],
    target_states: list[Tensor],
    stitched_last: list[Tensor],
    batch: _Batch,
) -> dict[str, Float[Tensor, "pairs b u"]]:
    """Return the loss of a stitch φ, and how near its states and outputs are to the target's.

    φ maps states h of the source to states of the target, whose later blocks then run. All results
    are for the u = t - 1 predicted tokens of each row; states are those at the token before.

    Args:
        target: The model into which φ is stitched.
        mapped_states: For each layer pair, φ(h), (b, t, e).
        target_states: For each layer pair, the target's states at the same layer.
        stitched_last: For each layer pair, the stitched model's states after the last block.
        batch: The rows, with the target's own states.
    """
    following = batch.rows.tokens[:, 1:].to(target.device)  # (b, u)
    stitched = torch.stack([state[:, :-1].flatten(0, 1) for state in stitched_last])
    target_last = batch.target_last[:, :-1]
    comparison = compare_outputs(
        stitched, target.finish, target_last.flatten(0, 1), following.flatten()
    )
    loss, kl, top1 = (values.float().unflatten(1, following.shape) for values in comparison)

    distances = []
    norm_ratios = []
    for mapped, target_state in zip(mapped_states, target_states, strict=True):
        mapped = mapped[:, :-1].float()
        target_state = target_state[:, :-1].float()
        distances.append(_relative_distance(mapped, target_state))
        norm_ratios.append(mapped.norm(dim=-1) / target_state.norm(dim=-1))
    last_distances = [_relative_distance(state[:, :-1], target_last) for state in stitched_last]
    return {
        "stitch": loss,
        "kl": kl,
        "top1": top1,
        "distance": torch.stack(distances),
        "norm": torch.stack(norm_ratios),
        "penultimate": torch.stack(last_distances),
    }


def _relative_distance(
    states: Float[Tensor, "b u e"], reference: Float[Tensor, "b u e"]
) -> Float[Tensor, "b u"]:
    """Return ‖s - r‖ / ‖r‖ of each state s and its reference r, in float32.

    There are b rows of text, with states (of width e) at u tokens each.
    """
    difference = states.float() - reference.float()
    return difference.norm(dim=-1) / reference.float().norm(dim=-1)


@torch.no_grad()
def target_losses(model: FrozenModel, rows: TokenRows) -> Float[Tensor, " documents"]:
    """Return a language model's total next-token loss on each document, in nats.

    The first token of each row is left out, as no token before it predicts it.

    Args:
        model: The model as it is, such as the target of a stitch without the stitch.
        rows: The rows of text, with the document of each token.
    """
    sums = DocumentSums(rows.documents)
    batch_rows = rows_per_batch(rows, tokens_per_batch(model.device))
    for batch in rows.batches(batch_rows):
        after_last_block = model.head(batch.tokens, model.n_layers - 1)
        (loss,) = next_token_losses(model, [after_last_block], batch.tokens)
        _add_losses(sums, batch.documents, {"loss": loss})
    return sums["loss"]


class EvaluationBatch(NamedTuple):
    """How much `document_sums` reads and runs together.

    Attributes:
        rows: How many rows of text are read together.
        layer_pairs: How many layer pairs run together.
    """

    rows: int
    layer_pairs: int


@torch.no_grad()
def largest_evaluation_batch(
    source: FrozenModel,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    rows: TokenRows,
    budget: Budget,
    *,
    has_controls: bool = False,
) -> EvaluationBatch:
    """Return how many rows and layer pairs fit into memory at once, to evaluate stitches.

    Pairs give way first: rows are as many as fit with a single pair. The memory of one row through
    both models, of one block of the target, and of one chunk of logits is measured. At least one
    row and one pair are returned, whether or not they fit.

    Args:
        source, target, layer_pairs, rows: What `document_sums` will be called with.
        budget: The memory that there is.
        has_controls: Whether controls read as many states again as the target has.
    """
    first_row = rows.select(slice(1)).to_int64()
    device = target.device
    with LiveBytes(device) as live:
        states = first_row.source_states(source, [layer for layer, _ in layer_pairs])
        target_states = target.residuals(first_row.tokens, [layer for _, layer in layer_pairs])
        bytes_of_states = live.now
        bytes_per_row = live.peak
        if has_controls:
            bytes_per_row += sum(state.nbytes for state in target_states)

        live.restart()
        last_states(target, [(target.n_layers - 2, target_states[-1])])
        bytes_of_block = live.peak - bytes_of_states
        bytes_per_pair = bytes_of_block + STATE_COPIES * target_states[-1].nbytes
        del states, target_states

        live.restart()
        bytes_before = live.now
        chunk = torch.zeros(CHUNK, target.d_model, device=device, dtype=target.dtype)
        following = torch.zeros(CHUNK, dtype=torch.long, device=device)
        compare_outputs(chunk[None], target.finish, chunk, following)
        bytes_of_logits = live.peak - bytes_before

    def fits(row_count: int, pair_count: int = 1) -> bool:
        """Return whether this many rows, stitched at this many pairs, fit beside the logits."""
        bytes_of_rows = row_count * (bytes_per_row + pair_count * bytes_per_pair)
        return bytes_of_logits + bytes_of_rows <= budget.room

    row_count = halve_until(fits, rows_per_batch(rows, tokens_per_batch(device)))
    fitting_pairs = 1
    while fitting_pairs < len(layer_pairs) and fits(row_count, fitting_pairs + 1):
        fitting_pairs += 1
    return EvaluationBatch(row_count, fitting_pairs)
