"""What one batch of states leaves of every pair of models: each layer is centred once, each block computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.calibration.documents import (
    Permutations,
    count_documents,
    documents_of_rows,
    permutations_of,
)
from thinkalike.measures.conditional.groups import RowGroups, groups_of
from thinkalike.measures.conditional.hsic import centre_groups, layer_hsics_within
from thinkalike.measures.kernels.blocks import Blocks, Pair, joined
from thinkalike.measures.kernels.centring import CentredRows, Workspace, centre, common_dtype, refuse_flaws
from thinkalike.measures.kernels.hsic import FEWEST, enough_rows
from thinkalike.measures.kernels.kernel_alignment import layer_hsics
from thinkalike.measures.kernels.rows import RowChoice
from thinkalike.progress import counted


class Options(NamedTuple):
    """How a batch is compared; see `CKA`."""

    estimator: str
    kernel: str
    flatten: str
    given: str
    permutations: int


@dataclass
class Batch:
    """The states of several models for the same tokens; see `CKA.update_pairs`."""

    options: Options
    states: Sequence[Sequence[Tensor]]
    names: Sequence[str]
    mask: Shaped[Tensor, " ..."] | None
    number: int
    groups: Int[Tensor, " ..."] | None
    documents: Int[Tensor, " ..."] | None
    workspace: Workspace

    @torch.no_grad()
    def records(self, pairs: Iterable[Pair]) -> dict[Pair, Float[Tensor, " r"]]:
        """Return what `CKA` keeps of the batch, a vector for each pair of models.

        Raises:
            ValueError: See `CKA.update`.
        """
        self._check_groups()
        first = self.states[0][0]
        within = None if self.groups is None else groups_of(self.groups, self.mask, first, FEWEST)
        by_dtype: dict[torch.dtype, list[Pair]] = {}
        for a, b in dict.fromkeys(pairs):
            by_dtype.setdefault(common_dtype([*self.states[a], *self.states[b]]), []).append((a, b))
        with torch.autocast(first.device.type, enabled=False):
            parts = [self._records(some, dtype, within) for dtype, some in by_dtype.items()]
        return {pair: record for part in parts for pair, record in part.items()}

    def _check_groups(self) -> None:
        given = self.options.given
        if (self.groups is None) != (given == "none"):
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {given}")

    def _records(self, pairs: list[Pair], dtype: torch.dtype, within: RowGroups | None) -> dict[Pair, Tensor]:
        """Return the records of pairs whose states are compared in one dtype."""
        layers, places = self._centred(dict.fromkeys(model for pair in pairs for model in pair), dtype, within)
        leverages = torch.stack([layer.leverage for layer in layers]).double()
        models = list(dict.fromkeys(places.values()))  # one that is the same as another is computed once
        numbers = {model: models.index(own) for model, own in places.items()}
        across = list(dict.fromkeys((numbers[a], numbers[b]) for a, b in pairs))
        whole = list(dict.fromkeys([*((model, model) for model in numbers.values()), *across]))
        hsics = self._hsics(layers, Blocks(models, whole), within)
        nulls = self._nulls(layers, models, across, within) if self.options.permutations else {}
        found = {}
        for a, b in pairs:
            pair = numbers[a], numbers[b]
            parts = [leverages.new_tensor([self.number]), joined(hsics, pair)]
            parts += nulls.get(pair, [])
            parts.append(leverages[[*places[a], *places[b]]])
            if within is not None:
                parts.append(leverages.new_tensor([len(within.order), within.rows]))
            found[a, b] = torch.cat([part.flatten() for part in parts])
        return found

    def _centred(
        self, models: Iterable[int], dtype: torch.dtype, within: RowGroups | None
    ) -> tuple[list[CentredRows], dict[int, tuple[int, ...]]]:
        """Return the different layers, each centred once, and where those of each model stand among them."""
        choose, layers, places = RowChoice(self.options.flatten, self.mask), list[CentredRows](), dict[int, int]()
        n: int | None = None
        found = {}
        for model in models:
            for index, states in enumerate(self.states[model]):
                if id(states) in places:
                    continue
                rows, name = choose(states.to(dtype)), f"{self.names[model]} layer {index}"
                n = n or self._enough(rows)
                if len(rows) != n:
                    message = f"{name} has {len(rows)} rows, but {layers[0].name} has {n}: both need the same tokens"
                    raise ValueError(message)
                places[id(states)] = len(layers)
                layers.append(self._about_centre(rows, name, len(layers), within))
            found[model] = tuple(places[id(states)] for states in self.states[model])
        refuse_flaws(layers, "all rows are the same" if within is None else "the rows of each token are the same")
        return layers, found

    @staticmethod
    def _enough(rows: Tensor) -> int:
        enough_rows(len(rows))
        return len(rows)

    def _about_centre(self, rows: Tensor, name: str, slot: int, within: RowGroups | None) -> CentredRows:
        if within is not None:
            return centre_groups(rows, within, name)
        return centre(rows, name, self.workspace.take(slot, rows))

    def _nulls(
        self, layers: list[CentredRows], models: list[tuple[int, ...]], across: list[Pair], within: RowGroups | None
    ) -> dict[Pair, list[Tensor]]:
        """Return of each pair the HSICs of permuted rows, (p, l, m), those by chance, and the number of documents."""
        moves, documents = self._moves(len(layers[0].rows), within)
        sources, targets = (list(dict.fromkeys(side)) for side in zip(*across, strict=True))
        front, back = (sorted({place for model in side for place in models[model]}) for side in (sources, targets))
        own = [tuple(front.index(place) for place in models[model]) for model in sources]
        own += [tuple(len(front) + back.index(place) for place in models[model]) for model in targets]
        blocks = Blocks(own, [(sources.index(a), len(sources) + targets.index(b)) for a, b in across])
        found = []
        for order in counted(moves.orders.to(layers[0].rows.device), "permutation"):
            permuted = [layers[place]._replace(rows=layers[place].rows[order]) for place in back]
            hsics = self._hsics([*(layers[place] for place in front), *permuted], blocks, within)
            found.append([hsics[pair] for pair in blocks.pairs])
        nulls = {pair: torch.stack(each) for pair, each in zip(across, zip(*found, strict=True), strict=True)}
        away = moves.away.to(layers[0].rows.device)
        return {pair: [null, null[away].mean(0), null.new_tensor([documents])] for pair, null in nulls.items()}

    def _moves(self, n: int, within: RowGroups | None) -> tuple[Permutations, int]:
        """Return permutations of n rows, and how many documents they move; given the token, rows of one change places.

        A row that is no single token has no document, so that rows change places.
        """
        count = self.options.permutations
        if within is not None:
            orders = [within.shuffled(self.number * count + permutation) for permutation in range(count)]
            return Permutations(torch.stack(orders).cpu(), torch.ones(count, dtype=torch.bool)), n
        of_tokens = self.options.flatten == "token"
        owners = documents_of_rows(self.states[0][0], self.mask, self.documents) if of_tokens else torch.arange(n)
        return permutations_of(owners, count, self.number), count_documents(owners)

    def _hsics(self, layers: list[CentredRows], blocks: Blocks, within: RowGroups | None) -> dict[Pair, Tensor]:
        if within is not None:
            return layer_hsics_within(layers, within, self.options.estimator, blocks)
        return layer_hsics(layers, self.options.kernel, self.options.estimator, blocks)
