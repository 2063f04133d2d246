"""How similar the states of two models are at each layer pair, in both directions and given the current token.

A stitch is cheap wherever the tail can read off what it needs, whatever else differs. So these measures compare the
states themselves: without the part that the current token explains, and with R² both ways, as the states of a source
that knows more, or less, predict the target's well in one direction only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import Layout, TokenRows
from thinkalike.errors import DataError
from thinkalike.evaluation.language import BATCH_TOKENS, ends_of, halved
from thinkalike.evaluation.stitches import states_of_both
from thinkalike.measures.closed_forms import LayerPair
from thinkalike.measures.estimates import Estimate, jackknife, leave_one_out
from thinkalike.measures.hsic import FEWEST
from thinkalike.measures.kernel_alignment import alignment, group_hsics
from thinkalike.measures.losses import surprises, token_codes
from thinkalike.measures.prediction import LinearPrediction
from thinkalike.measures.rows import RowGroups
from thinkalike.memory import Budget, LiveBytes
from thinkalike.models.frozen import FrozenModel
from thinkalike.progress import counted

FIT_TOKENS = 2**17  # at most, that linear maps are fitted on
GROUPED_TOKENS = 2**14  # at most, of a batch: rows of one token are compared within it
LEAST_TOKENS = 1024  # of a batch, if the report has two of them
BATCHES = 8  # of the report at least, if it has as many rows: intervals leave out one at a time
COPIES = 5  # of all states in float64 that exist at the same time


@dataclass(frozen=True, eq=False)
class Likeness:
    """How similar the states of each layer pair are, with 95 % jackknife intervals over batches of the report.

    Each measure is an `Estimate` of shape (pairs,); it is 0 where states do not vary:
    `r2`, `r2_back`: held-out R² of the linear map into the target's states, and of that back, see `LinearPrediction`;
        at most 1.
    `r2_given_token`, `r2_given_token_back`: the same of states less the mean of their token.
    `cka_given_token`: unbiased CKA within the rows of one token, in [-1, 1].
    `future`: held-out R² of the linear map from the source's state to the part of the next token that the target did
        not foresee, see `surprises`; at most 1, and about 0 or below for a source that knows no later text.

    Attributes:
        measures: The estimates by these names.
        rows_used: The share of the report's rows that have 4 rows of their token in their batch, in (0, 1]; measures
            given the token are of these.
    """

    measures: Mapping[str, Estimate]
    rows_used: float

    def columns(self) -> dict[str, list[float]]:
        """Return each measure with its `_low` and `_high`, in columns with a row per layer pair."""
        return {key: part for name, each in self.measures.items() for key, part in ends_of(name, each).items()}


@torch.no_grad()
def likeness_of(
    source: Any,
    target: FrozenModel,
    layer_pairs: Sequence[LayerPair],
    fit: TokenRows,
    report: TokenRows,
    budget: Budget | None = None,
) -> Likeness:
    """Compare the states of two models at these layer pairs, in one pass of each model over the rows.

    The first token of each row is left out, as its state has no context and is often massive, and the last, which has
    no next.

    Args:
        source: A `FrozenModel`, or anything with `residuals(tokens, layers)`, which gives states (b, t, d).
        fit: Rows that the linear maps are fitted on; 2^17 tokens of them are read.
        report: Rows of other documents, which all measures are of. The current token is the target's.
        budget: Of memory; None: what the target's device has left. With less, batches are smaller, and so are the
            groups of rows of one token, which changes measures given the token a little.

    Raises:
        DataError: No token occurs in 4 rows of a batch.
    """
    layers = [sorted({pair[side] for pair in layer_pairs}) for side in (0, 1)]
    reader = _Reader(source, target, layers[0], layers[1], codes_of(target))
    rows = _rows_at_once(reader, len(layer_pairs), report, budget or Budget.of(target.device))
    sums = LikenessSums(layer_pairs, layers)
    for batch in reader.batches(fit.tokens[: max(FIT_TOKENS // fit.context, 1)], fit.layout, rows):
        sums.fit(batch)
    for batch in reader.batches(report.tokens, report.layout, rows):
        sums.judge(batch)
    return sums.result()


class LikenessBatch(NamedTuple):
    """The states of the tokens of some rows, by layer, (n, d), on the target's device; see `surprises`."""

    source: dict[int, Tensor]
    target: dict[int, Tensor]
    groups: RowGroups
    surprises: Tensor

    def given_token(self) -> tuple[dict[int, Tensor], dict[int, Tensor]]:
        """Return the states of both models less the mean of their token, without those of rare tokens."""
        sides = (self.source, self.target)
        mine, theirs = ({layer: self.groups.without_means(own) for layer, own in side.items()} for side in sides)
        return mine, theirs


@dataclass(frozen=True)
class _Reader:
    """Runs both models over rows of text, some rows at a time."""

    source: Any
    target: FrozenModel
    layers: Sequence[int]  # of the source
    depths: Sequence[int]  # of the target
    codes: Tensor

    def batches(self, rows: Int[Tensor, "rows width"], layout: Layout, at_once: int) -> Iterator[LikenessBatch]:
        """Yield about equal batches of at most `at_once` rows."""
        few = max(BATCH_TOKENS // layout.target, 1)
        for part in counted(rows.tensor_split(-(-len(rows) // at_once)), "batch"):
            parts = [self.states(piece, layout) for piece in part.split(few)]
            *states, tokens, surprising = (torch.cat(each) for each in zip(*parts, strict=True))
            mine = dict(zip(self.layers, states, strict=False))
            theirs = dict(zip(self.depths, states[len(mine) :], strict=True))
            try:
                groups = RowGroups.of(tokens, FEWEST)
            except ValueError as error:
                needed = f"{FEWEST} rows of one token, and a batch of {len(tokens)} has none"
                raise DataError(f"likeness given the token needs {needed}: raise data.report_tokens") from error
            yield LikenessBatch(mine, theirs, groups, surprising)

    def states(self, rows: Int[Tensor, "rows width"], layout: Layout) -> list[Tensor]:
        """Return the states of all layers, the tokens and the surprises of rows that run through the models at once."""
        rows, place = rows.long(), self.target.device
        tokens = layout.target_tokens(rows)
        asked = self.layers, [*self.depths, self.target.n_layers - 1]
        mine, theirs = states_of_both(self.source, self.target, rows, *asked, layout)
        mine = layout.gathered(mine, rows)
        *states, last = (state[:, 1:-1].flatten(0, 1).to(place) for state in (*mine, *theirs))
        surprising = surprises(last, self.target.finish, tokens[:, 2:].flatten().to(place), self.codes)
        return [*states, tokens[:, 1:-1].flatten().to(place), surprising]


class LikenessSums:
    """Sums for all layer pairs: least squares from the rows to fit on, then sums over the report's."""

    def __init__(self, pairs: Sequence[LayerPair], layers: Sequence[Sequence[int]]):
        self.pairs, self.layers = pairs, layers
        self.plain, self.given = (LinearPrediction(pairs, nothing=0.0) for _ in range(2))
        self.future = LinearPrediction([(layer, 0) for layer in layers[0]], nothing=0.0)
        self.hsics: list[Tensor] = []
        self.used: list[tuple[int, int]] = []

    def fit(self, batch: LikenessBatch) -> None:
        self.plain.fit(batch.source, batch.target)
        self.given.fit(*batch.given_token())
        self.future.fit(batch.source, [batch.surprises])

    def judge(self, batch: LikenessBatch) -> None:
        mine, theirs = batch.given_token()
        self.plain.judge(batch.source, batch.target)
        self.given.judge(mine, theirs)
        self.future.judge(batch.source, [batch.surprises])
        hsics, flat = group_hsics([*mine.values(), *theirs.values()], batch.groups, "unbiased")
        self.hsics.append(hsics.masked_fill(flat[:, None] | flat, 0).cpu())
        self.used.append((len(batch.groups.order), batch.groups.rows))

    def result(self) -> Likeness:
        sources, targets = self.layers
        places = [sources.index(layer) for layer, _ in self.pairs]
        depths = [len(sources) + targets.index(depth) for _, depth in self.pairs]
        measures = dict(zip(("r2", "r2_back"), self.plain.compute(), strict=True))
        measures |= dict(zip(("r2_given_token", "r2_given_token_back"), self.given.compute(), strict=True))
        measures["cka_given_token"] = _cka(torch.stack(self.hsics), places, depths)
        measures["future"] = self.future.compute()[0][places]
        kept, rows = map(sum, zip(*self.used, strict=True))
        return Likeness(measures, kept / rows)


def codes_of(target: FrozenModel) -> Float[Tensor, "v c"]:
    """Return codes for as many tokens as the target has logits, which may be more than its tokenizer knows."""
    state = torch.zeros(1, target.d_model, device=target.device, dtype=target.dtype)
    return token_codes(target.finish(state).shape[-1]).to(target.device)


def _rows_at_once(reader: _Reader, pairs: int, report: TokenRows, budget: Budget) -> int:
    """Return how many rows make a batch, by the memory that one row takes."""
    with LiveBytes(reader.target.device) as live:
        states = reader.states(report.tokens[:1], report.layout)[:-2]
        kept = live.now
    widths = [state.shape[1] for state in states]
    products = 3 * 8.0 * (sum(width**2 for width in widths) + pairs * max(widths) ** 2)
    copies = COPIES * 8.0 * report.context * sum(widths)
    few = max(BATCH_TOKENS // report.context, 1)
    most = max(len(report) // BATCHES, min(LEAST_TOKENS // report.context, len(report) // 2), 1)
    most = min(most, max(GROUPED_TOKENS // report.context, 1))
    return halved(most, lambda rows: products + min(rows, few) * live.peak + rows * (copies + kept) <= budget.room)


def _cka(hsics: Float[Tensor, "b k k"], places: list[int], depths: list[int]) -> Estimate:
    """Return CKA of pairs of layers from the HSICs of batches, 0 for a layer in which nothing varies."""

    def aligned(sums: Float[Tensor, "*b k k"]) -> Float[Tensor, "*b p"]:
        flat = sums.diagonal(dim1=-2, dim2=-1) <= 0
        sums = sums.masked_fill(flat[..., None] | flat[..., None, :], 0) + flat.double().diag_embed()
        return alignment(sums)[..., places, depths]

    return jackknife(aligned(hsics.mean(0)), aligned(leave_one_out(hsics)))
