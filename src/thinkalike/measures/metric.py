"""CKA of all layer pairs of two models as a metric of torchmetrics; apart, as torchmetrics takes seconds to import."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from math import prod
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torchmetrics import Metric

from thinkalike.arguments import takes_arrays
from thinkalike.measures.accumulators import Record, columns_of
from thinkalike.measures.kernel_alignment import CKAMeans, CKAResult


class CKA(Metric):
    """Minibatch CKA of every layer of a source with every layer of a target (Nguyen et al. 2021).

    Each `update` takes one batch of n >= 4 rows from both models and keeps its HSICs in float64, some kB. The order of
    the batches does not matter, and processes may share them. A centred copy of the rows is in memory meanwhile. A
    tensor that stands for several layers, as where a model is compared with itself, costs one. Products of bfloat16 and
    float16 states are taken in float32, which keeps the value of these states to 1e-7; the error of rounding states to
    bfloat16 is 1e-5 of benign states, 2e-4 with one massive token, and 1e-3 where a few dimensions have an offset of
    300 (1024 rows of width 256).

    Args:
        source_layers, target_layers: How many layers a batch brings.
        estimator, kernel: See `cka`.
        aggregate: "ratio_of_means", Σ HSIC / √(Σ HSIC Σ HSIC) over batches, or "mean_of_ratios", the mean of each
            batch's CKA (Brown et al. 2023), which is off if batches have few rows.
        flatten: What a row is, see `rows_of` (Brown et al. 2023, footnote 6).
        given: "token" compares rows within groups of one token, each of at least 4 rows: sums over groups, weighted by
            their rows, and over batches, come before the ratio. "none" compares all rows.
        permutations: For a null, see `LayerMeans`; each takes as much time again.
        kwargs: Options of `torchmetrics.Metric`.
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
        permutations: int = 0,
        **kwargs: Any,
    ):
        super().__init__(**kwargs)
        self.options: dict[str, Any] = {"estimator": estimator, "kernel": kernel, "flatten": flatten, "given": given}
        self.options["permutations"] = permutations
        self._means = CKAMeans(source_layers, target_layers, aggregate=aggregate, **self.options)
        self._shapes = self._means.shapes()
        # one flat vector for each batch: torchmetrics can gather these from processes of which some have no batch
        self.add_state("records", default=[], dist_reduce_fx="cat", persistent=True)
        self.set_dtype(torch.float64)

    @takes_arrays
    def update(
        self,
        source: Sequence[Float[Tensor, " ..."]],
        target: Sequence[Float[Tensor, " ..."]],
        mask: Shaped[Tensor, " ..."] | None = None,
        number: int | None = None,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch: the same tokens, or rows, in both models; see `Accumulator.update`."""
        known = self._parsed(self._batches())
        number = len(known) if number is None else number
        self._means.records = {other: record for other, record in known if "null" in record}
        self._means.update(source, target, mask, number, groups, documents)
        record = self._means.records[number]
        parts = [record.get(name, torch.full(shape, torch.nan)) for name, shape in self._shapes.items()]
        documents = record["documents"]
        flat = [part.double().flatten() for part in (torch.tensor([number, len(documents)]), documents, *parts)]
        self.records = [*self._batches(), torch.cat(flat).to(self.device)]

    def forward(self, *args: Any, **kwargs: Any) -> CKAResult:
        """Add one batch as `update` does, and return its own CKA."""
        self.update(*args, **kwargs)
        return self._result(self._batches()[-1:])

    def compute(self) -> CKAResult:
        """Return the CKA of all batches so far, of all processes, with intervals; a ValueError of no batch."""
        if not self.update_called:
            raise ValueError("there is no CKA of no batches: call update first")
        return self._result(self._batches())

    def reset(self) -> None:
        """Forget all batches."""
        self.records = []  # torchmetrics would empty the very list of a `state_dict` that was loaded
        super().reset()

    def merge_state(self, incoming_state: dict[str, Any] | Metric) -> None:
        """Add the batches of another metric; a ValueError if it has other options."""
        if isinstance(incoming_state, CKA) and incoming_state.options != self.options:
            raise ValueError(f"batches of {incoming_state.options} cannot be added to those of {self.options}")
        super().merge_state(incoming_state)

    @property
    def update_called(self) -> bool:
        """Whether there is a batch, also one from a `state_dict`."""
        return len(self.records) > 0

    def _batches(self) -> list[Tensor]:
        return [self.records] if isinstance(self.records, Tensor) else self.records

    def _parsed(self, batches: Sequence[Tensor]) -> list[tuple[int, Record]]:
        """Return the numbers and the records of batches that are laid end to end."""
        found, rest = [], torch.cat([*batches]) if batches else torch.empty(0)
        sizes = [prod(shape) for shape in self._shapes.values()]
        while len(rest):
            (number, count), rest = rest[:2].long().tolist(), rest[2:]
            documents, *parts, rest = rest.split([count, *sizes, len(rest) - count - sum(sizes)])
            named = zip(self._shapes.items(), parts, strict=True)
            record = {name: part.view(shape) for (name, shape), part in named if not part.isnan().all()}
            found.append((number, {"documents": documents.long(), **record}))
        return sorted(found, key=itemgetter(0))

    def _result(self, batches: Sequence[Tensor]) -> CKAResult:
        return self._means.result(columns_of([record for _, record in self._parsed(batches)]))

    def _wrap_compute(self, compute: Callable[[], CKAResult]) -> Callable[[], CKAResult]:
        # torchmetrics takes results apart to squeeze 1 x 1 matrices, which a frozen one refuses: it gets a closed box
        boxed = super()._wrap_compute(lambda: SimpleNamespace(result=compute()))
        return wraps(compute)(lambda: boxed().result)
