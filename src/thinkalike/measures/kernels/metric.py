"""CKA of all layer pairs of two models, gathered batch by batch, by any number of processes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torchmetrics import Metric

from thinkalike.measures.conditional.groups import RowGroups, groups_of
from thinkalike.measures.conditional.hsic import centre_groups, layer_hsics_within
from thinkalike.measures.kernels.centring import CentredRows, Workspace, centre, common_dtype
from thinkalike.measures.kernels.hsic import FEWEST, enough_rows
from thinkalike.measures.kernels.kernel_alignment import check_choices, layer_hsics, layer_names
from thinkalike.measures.kernels.result import CKAResult, summarise
from thinkalike.measures.kernels.rows import rows_of
from thinkalike.measures.statistics.jackknifing import as_batches


class CKA(Metric):
    """Minibatch CKA of every layer of a source with every layer of a target (Nguyen et al. 2021).

    Each `update` takes one batch of n >= 4 rows from both models and keeps its HSICs in float64, some kB. The order and
    the split of the batches do not matter. A centred copy of the rows is in memory meanwhile, which the next batch
    reuses. A tensor that stands for several layers, as where a model is compared with itself, costs one.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        estimator, kernel: See `cka`.
        aggregate: "ratio_of_means", Σ HSIC / √(Σ HSIC Σ HSIC) over batches, or "mean_of_ratios", the mean of each
            batch's CKA (Brown et al. 2023), which is off if batches have few rows.
        flatten: What a row is, see `rows_of` (Brown et al. 2023, footnote 6).
        given: "token" compares rows within groups of one token, of which each has at least 4 rows: sums over groups,
            weighted by their rows, and over batches, come before the ratio. "none" compares all rows.
        null: Whether to compare also with the target's rows permuted inside each batch, or group, for half as much time
            again.
        left_out: Whether the first batch has all rows, and the others have all but a part of them, on which intervals
            rest, see `as_batches`; such batches have one aggregate.

    Raises:
        ValueError: An option is not known.
    """

    is_differentiable = False
    higher_is_better = True
    full_state_update = False
    records: list[Tensor] | Tensor

    def __init__(
        self,
        source_layers: int,
        target_layers: int,
        *,
        estimator: str = "unbiased",
        aggregate: str = "ratio_of_means",
        kernel: str = "linear",
        flatten: str = "token",
        given: str = "none",
        null: bool = False,
        left_out: bool = False,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        check_choices(estimator=estimator, aggregate=aggregate, kernel=kernel, flatten=flatten, given=given)
        if given == "token" and (kernel, flatten) != ("linear", "token"):
            raise ValueError(
                f"given=token compares single tokens by kernel=linear, not {kernel} with flatten={flatten}"
            )
        self.source_layers, self.target_layers = source_layers, target_layers
        self.estimator, self.aggregate, self.kernel = estimator, aggregate, kernel
        self.flatten, self.given, self.null, self.left_out = flatten, given, null, left_out
        self.names = layer_names(source_layers, target_layers)
        # One flat vector per batch: a process without any can still be gathered, and all that is known goes together.
        self.add_state("records", default=[], dist_reduce_fx="cat", persistent=True)
        self.set_dtype(torch.float64)
        self._workspace = Workspace()

    @torch.no_grad()
    def update(
        self,
        source_states: Sequence[Float[Tensor, " ..."]],
        target_states: Sequence[Float[Tensor, " ..."]],
        mask: Shaped[Tensor, " ..."] | None = None,
        number: int | None = None,
        groups: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch: the same tokens through both models.

        Args:
            source_states: The source's states, per layer (b, t, d_l), or rows (n, d_l); widths and dtypes may differ.
            target_states: The target's states, per layer (b, t, e_m), or rows (n, e_m).
            mask: (b, t), True for the tokens that count.
            number: The number of this batch in the whole run, which seeds its permutation and orders the convergence
                curve; by default the count of batches so far. Several processes need it if these two matter.
            groups: The token of each state, (b, t) or (n,), for given="token" only.

        Raises:
            ValueError: The number of layers is not that announced, layers differ in n, n < 4, the mask does not fit, or
                a layer is not finite or has no variance; groups are missing or not wanted, or none has 4 rows. Nothing
                is added.
        """
        counts = len(source_states), len(target_states)
        if counts != (self.source_layers, self.target_layers):
            raise ValueError(f"{self.source_layers} and {self.target_layers} layers were announced, but {counts} came")
        if (groups is None) != (self.given == "none"):
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {self.given}")
        number = len(self.records) if number is None else number
        states = [*source_states, *target_states]
        firsts, places = _distinct(states)
        within = None if groups is None else groups_of(groups, mask, states[0], FEWEST)
        with torch.autocast(states[0].device.type, enabled=False):
            named = enumerate(self._rows([(self.names[i], states[i]) for i in firsts], mask))
            layers = [self._centred(rows, name, slot, within) for slot, (name, rows) in named]
            leverages = torch.stack([layer.leverage for layer in layers])[places].double()
            chosen = sorted(set(places[self.source_layers :])) if self.null else []
            null_places = [len(layers) + chosen.index(i) for i in places[self.source_layers :]] if self.null else []
            layers += _permuted([layers[i] for i in chosen], number, within)
            hsics = self._hsics(layers, within, places + null_places)
        k = len(states)
        parts = [hsics.new_tensor([number]), hsics[:k, :k], hsics[: self.source_layers, k:], leverages]
        if within is not None:
            parts.append(hsics.new_tensor([len(within.order), within.rows]))
        self.records = [*self._batches(), torch.cat([part.flatten() for part in parts]).to(self.device)]

    def forward(self, *args: Any, **kwargs: Any) -> CKAResult:
        """Add one batch as `update` does, and return its own CKA."""
        result = super().forward(*args, **kwargs)
        self._forward_cache = None  # torchmetrics could not move it to another device
        return result

    def compute(self) -> CKAResult:
        """Return the CKA of all batches so far, with intervals.

        Raises:
            ValueError: There was no batch.
        """
        if not self.update_called:
            raise ValueError("there is no CKA of no batches: call update first")
        layers, cells = len(self.names), self.source_layers * self.target_layers
        sizes = [1, layers**2, cells * self.null, layers, 2 * (self.given == "token")]
        table = torch.cat(self._batches()).view(-1, sum(sizes))
        numbers, hsics, nulls, leverages, counts = table.split(sizes, 1)
        order = numbers.squeeze(1).argsort(stable=True)
        hsics, nulls, leverages, aggregate = hsics[order], nulls[order], leverages[order], self.aggregate
        if self.left_out:
            nulls, leverages = (part[:1].expand(len(part) - 1, -1) for part in (nulls, leverages))
            hsics, aggregate = as_batches(hsics), "ratio_of_means"
        return summarise(
            hsics.view(-1, layers, layers),
            nulls.reshape(-1, self.source_layers, self.target_layers) if self.null else None,
            leverages,
            self.source_layers,
            aggregate,
            float(counts[:, 0].sum() / counts[:, 1].sum()) if self.given == "token" else None,
        )

    def merge_state(self, incoming_state: Metric | dict[str, Any]) -> None:
        """Add what another metric saw.

        Raises:
            ValueError: It has other options.
        """
        if isinstance(incoming_state, CKA):
            self._check_options(incoming_state.get_extra_state())
        super().merge_state(incoming_state)

    def get_extra_state(self) -> dict[str, Any]:
        """Return the options, which travel with the batches in a state dict."""
        options = ("source_layers", "target_layers", "estimator", "kernel", "flatten", "null")
        given = {} if self.given == "none" else {"given": self.given}  # as states of before have none
        return {name: getattr(self, name) for name in options} | given

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Check that a loaded state has these options.

        Raises:
            ValueError: It has others.
        """
        self._check_options(state)
        self.records = self._batches()  # a list of its own

    @property
    def update_called(self) -> bool:
        """Whether there is a batch, from wherever it came."""
        return len(self.records) > 0

    def _check_options(self, options: dict[str, Any]) -> None:
        if options != self.get_extra_state():
            raise ValueError(
                f"batches of other options cannot be added: {self.get_extra_state()} here, {options} there"
            )

    def _batches(self) -> list[Tensor]:
        return [self.records] if isinstance(self.records, Tensor) else list(self.records)

    def _centred(self, rows: Tensor, name: str, slot: int, within: RowGroups | None) -> CentredRows:
        if within is not None:
            return centre_groups(rows, within, name)
        return centre(rows, name, self._workspace.take(slot, rows))

    def _hsics(self, layers: list[CentredRows], within: RowGroups | None, places: list[int]) -> Float[Tensor, "k k"]:
        if within is not None:
            return layer_hsics_within(layers, within, self.estimator, places)
        return layer_hsics(layers, self.kernel, self.estimator, places)

    def _rows(
        self, layers: Sequence[tuple[str, Tensor]], mask: Tensor | None
    ) -> Iterator[tuple[str, Float[Tensor, "n _"]]]:
        """Yield the name and the rows of one layer after the other, as a mask makes a copy."""
        dtype, n = common_dtype(layer for _, layer in layers), None
        for name, layer in layers:
            rows = rows_of(layer.to(dtype), self.flatten, mask)
            n = len(rows) if n is None else n
            if len(rows) != n:
                raise ValueError(f"{name} has {len(rows)} rows, but {self.names[0]} has {n}: both need the same tokens")
            enough_rows(n)
            yield name, rows

    def _wrap_compute(self, compute: Callable[[], CKAResult]) -> Callable[[], CKAResult]:
        # torchmetrics takes results apart to squeeze 1 x 1 matrices, which a frozen one refuses: it gets a closed box
        boxed = super()._wrap_compute(lambda: SimpleNamespace(result=compute()))
        return wraps(compute)(lambda: boxed().result)


def _permuted(layers: Sequence[CentredRows], number: int, within: RowGroups | None) -> list[CentredRows]:
    """Return the layers with their rows permuted, all in the same way, which the number decides, or within groups."""
    if not layers:
        return []
    n = len(layers[0].rows)
    rows = within.shuffled(number) if within else torch.randperm(n, generator=torch.Generator().manual_seed(number))
    return [layer._replace(rows=layer.rows[rows]) for layer in layers]


def _distinct(states: Sequence[Tensor]) -> tuple[list[int], list[int]]:
    """Return where each different tensor first stands, and which of the different ones stands at each place."""
    firsts = list({id(x): place for place, x in reversed(list(enumerate(states)))}.values())[::-1]
    ids = [id(states[place]) for place in firsts]
    return firsts, [ids.index(id(x)) for x in states]
