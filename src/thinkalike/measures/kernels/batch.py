"""What one batch of states leaves of every pair of models: each layer is centred once, each block computed once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor

from thinkalike.measures.conditional.groups import RowGroups, groups_of
from thinkalike.measures.conditional.hsic import centre_groups, layer_hsics_within
from thinkalike.measures.kernels.blocks import Blocks, Pair, joined
from thinkalike.measures.kernels.centring import CentredRows, Workspace, centre, common_dtype, refuse_flaws
from thinkalike.measures.kernels.hsic import FEWEST, enough_rows
from thinkalike.measures.kernels.kernel_alignment import layer_hsics
from thinkalike.measures.kernels.rows import RowChoice


class Options(NamedTuple):
    """How a batch is compared; see `CKA`."""

    estimator: str
    kernel: str
    flatten: str
    given: str
    null: bool


@dataclass
class Batch:
    """The states of several models for the same tokens; see `CKA.update_pairs`."""

    options: Options
    states: Sequence[Sequence[Tensor]]
    names: Sequence[str]
    mask: Shaped[Tensor, " ..."] | None
    number: int
    groups: Int[Tensor, " ..."] | None
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
        nulls: dict[Pair, Pair] = {}
        if self.options.null:
            layers, models, nulls = self._with_permuted(layers, models, across, within)
        hsics = self._hsics(layers, Blocks(models, [*whole, *nulls.values()]), within)
        found = {}
        for a, b in pairs:
            pair = numbers[a], numbers[b]
            parts = [leverages.new_tensor([self.number]), joined(hsics, pair)]
            parts += [hsics[nulls[pair]]] if self.options.null else []
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

    def _with_permuted(
        self, layers: list[CentredRows], models: list[tuple[int, ...]], across: list[Pair], within: RowGroups | None
    ) -> tuple[list[CentredRows], list[tuple[int, ...]], dict[Pair, Pair]]:
        """Add each target with its rows permuted; the pairs with those stand in place of the pairs across."""
        n = len(layers[0].rows)
        generator = torch.Generator().manual_seed(self.number)
        rows = torch.randperm(n, generator=generator) if within is None else within.shuffled(self.number)
        rows = rows.to(layers[0].rows.device)
        targets = list(dict.fromkeys(target for _, target in across))
        chosen = sorted({place for target in targets for place in models[target]})
        permuted = [layers[place]._replace(rows=layers[place].rows[rows]) for place in chosen]
        twins = [tuple(len(layers) + chosen.index(place) for place in models[target]) for target in targets]
        nulls = {(a, b): (a, len(models) + targets.index(b)) for a, b in across}
        return [*layers, *permuted], [*models, *twins], nulls

    def _hsics(self, layers: list[CentredRows], blocks: Blocks, within: RowGroups | None) -> dict[Pair, Tensor]:
        if within is not None:
            return layer_hsics_within(layers, within, self.options.estimator, blocks)
        return layer_hsics(layers, self.options.kernel, self.options.estimator, blocks)
