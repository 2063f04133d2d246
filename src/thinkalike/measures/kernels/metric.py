"""CKA of all layer pairs of two models, gathered batch by batch, by any number of processes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from types import SimpleNamespace
from typing import Any

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor
from torchmetrics import Metric

from thinkalike.arguments import Array, takes_arrays
from thinkalike.measures.kernels.batch import Batch, Options
from thinkalike.measures.kernels.centring import Workspace
from thinkalike.measures.kernels.kernel_alignment import check_choices, layer_names
from thinkalike.measures.kernels.result import CKAResult, Permuted, summarise
from thinkalike.measures.statistics.jackknifing import as_batches


class CKA(Metric):
    """Minibatch CKA of every layer of a source with every layer of a target (Nguyen et al. 2021).

    Each `update` takes one batch of n >= 4 rows from both models and keeps its HSICs in float64, some kB. The order and
    the split of the batches do not matter. A centred copy of the rows is in memory meanwhile, which the next batch
    reuses. A tensor that stands for several layers, as where a model is compared with itself, costs one. Products of
    bfloat16 and float16 states are taken in float32, which keeps the value of these states to 1e-7; what rounding to
    bfloat16 did to them before is 1e-5 of benign states, 2e-4 with one massive token, and 1e-3 where a few dimensions
    have an offset of 300 (1024 rows of width 256).

    Args:
        source_layers, target_layers: How many layers a batch brings.
        estimator, kernel: See `cka`.
        aggregate: "ratio_of_means", Σ HSIC / √(Σ HSIC Σ HSIC) over batches, or "mean_of_ratios", the mean of each
            batch's CKA (Brown et al. 2023), which is off if batches have few rows.
        flatten: What a row is, see `rows_of` (Brown et al. 2023, footnote 6).
        given: "token" compares rows within groups of one token, of which each has at least 4 rows: sums over groups,
            weighted by their rows, and over batches, come before the ratio. "none" compares all rows.
        permutations: How often to compare also with the target's documents permuted inside each batch, or given the
            token, its rows of each token; each takes as much time again. A p-value is at least 1 / (permutations + 1).
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
        permutations: int = 0,
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
        self.flatten, self.given, self.permutations, self.left_out = flatten, given, permutations, left_out
        self.names = layer_names(source_layers, target_layers)
        # One flat vector per batch: a process without any can still be gathered, and all that is known goes together.
        self.add_state("records", default=[], dist_reduce_fx="cat", persistent=True)
        self.set_dtype(torch.float64)
        self._workspace = Workspace()

    @takes_arrays
    def update(
        self,
        source_states: Sequence[Float[Array, " ..."]],
        target_states: Sequence[Float[Array, " ..."]],
        mask: Shaped[Array, " ..."] | None = None,
        number: int | None = None,
        groups: Int[Array, " ..."] | None = None,
        documents: Int[Array, " ..."] | None = None,
    ) -> None:
        """Add one batch: the same tokens through both models.

        Args:
            source_states: The source's states, per layer (b, t, d_l), or rows (n, d_l); widths and dtypes may differ.
            target_states: The target's states, per layer (b, t, e_m), or rows (n, e_m).
            mask: (b, t), True for the tokens that count.
            number: The number of this batch in the whole run, which seeds its permutation and orders the convergence
                curve; by default the count of batches so far. Several processes need it if these two matter.
            groups: The token of each state, (b, t) or (n,), for given="token" only.
            documents: The document of each state, (b, t) or (n,), which permutations move as blocks; by default each
                row is one of its own.

        Raises:
            ValueError: The number of layers is not that announced, layers differ in n, n < 4, the mask or the documents
                do not fit, or a layer is not finite or has no variance; groups are missing or not wanted, or none has 4
                rows. Nothing is added.
        """
        number = len(self.records) if number is None else number
        batch: Any = [source_states, target_states], mask, number, groups, documents  # which are tensors by now
        self.update_pairs([self], [(0, 1)], *batch, names=("source", "target"))

    @staticmethod
    def update_pairs(
        metrics: Sequence[CKA],
        sides: Sequence[tuple[int, int]],
        states: Sequence[Sequence[Float[Tensor, " ..."]]],
        mask: Shaped[Tensor, " ..."] | None = None,
        number: int = 0,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
        *,
        names: Sequence[str] | None = None,
    ) -> None:
        """Add one batch of several models to a metric for each pair of them, with the same bits as by `update`.

        Each layer is centred once, each tile of its Gram matrix made once, and each model compared with itself once,
        however many pairs it is in. A pair and its reverse are computed both: ask for one of them.

        Args:
            metrics: One for each pair; they have the same options, but for `aggregate` and `left_out`.
            sides: The numbers of the source and of the target of each metric; both may be the same.
            states: Of each model, as `update` takes those of one.
            mask, number, groups, documents: See `update`.
            names: What errors call the models; by default "model 0" and so on.

        Raises:
            ValueError: The metrics differ in their options; see `update`. Nothing is added to any of them.
        """
        options = metrics[0].options
        for metric, (source, target) in zip(metrics, sides, strict=True):
            if metric.options != options:
                raise ValueError(f"pairs of one batch share their options: {options} here, {metric.options} there")
            counts = len(states[source]), len(states[target])
            if counts != (metric.source_layers, metric.target_layers):
                announced = f"{metric.source_layers} and {metric.target_layers}"
                raise ValueError(f"{announced} layers were announced, but {counts} came")
        names = names or [f"model {index}" for index in range(len(states))]
        batch = Batch(options, states, names, mask, number, groups, documents, metrics[0]._workspace)
        records = batch.records(sides)
        for metric, side in zip(metrics, sides, strict=True):
            metric.records = [*metric._batches(), records[side].to(metric.device)]
            metric._computed = None  # what torchmetrics keeps of an earlier `compute`

    def plot(self, val: CKAResult | None = None, ax: Any = None) -> tuple[Any, Any]:
        """Draw the CKA of all layer pairs; returns figure and axes, as other metrics of torchmetrics do.

        Args:
            val: A result of `compute` or `forward`; by default that of all batches so far.
            ax: Where to draw; by default in a new figure.

        Raises:
            ValueError: There was no batch.
        """
        return (self.compute() if val is None else val).plot(ax)

    def __repr__(self) -> str:
        usual = inspect.signature(CKA).parameters.items()
        given = {name: getattr(self, name) for name, each in usual if each.kind is each.KEYWORD_ONLY}
        chosen = [f", {name}={given[name]!r}" for name, each in usual if given.get(name, each.default) != each.default]
        return f"CKA({self.source_layers}, {self.target_layers}{''.join(chosen)}; {len(self._batches())} batches)"

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
        layers, shape = len(self.names), (self.source_layers, self.target_layers)
        cells = self.source_layers * self.target_layers
        permuted = [cells * self.permutations, cells, 1] if self.permutations else [0, 0, 0]
        sizes = [1, layers**2, *permuted, layers, 2 * (self.given == "token")]
        table = torch.cat(self._batches()).view(-1, sum(sizes))
        numbers, *parts, counts = table.split(sizes, 1)
        order = numbers.squeeze(1).argsort(stable=True)
        hsics, nulls, levels, documents, leverages = (part[order] for part in parts)
        aggregate = self.aggregate
        if self.left_out:
            first = (part[:1].expand(len(part) - 1, -1) for part in (nulls, levels, documents, leverages))
            nulls, levels, documents, leverages = first
            hsics, aggregate = as_batches(hsics), "ratio_of_means"
        return summarise(
            hsics.view(-1, layers, layers),
            Permuted(nulls.reshape(-1, self.permutations, *shape), levels.reshape(-1, *shape), int(documents.min()))
            if self.permutations
            else None,
            leverages,
            self.source_layers,
            aggregate,
            float(counts[:, 0].sum() / counts[:, 1].sum()) if self.given == "token" else None,
            self.left_out,
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
        options = ("source_layers", "target_layers", "estimator", "kernel", "flatten", "permutations")
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
    def options(self) -> Options:
        """How each batch is compared."""
        return Options(self.estimator, self.kernel, self.flatten, self.given, self.permutations)

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

    def _wrap_compute(self, compute: Callable[[], CKAResult]) -> Callable[[], CKAResult]:
        # torchmetrics takes results apart to squeeze 1 x 1 matrices, which a frozen one refuses: it gets a closed box
        boxed = super()._wrap_compute(lambda: SimpleNamespace(result=compute()))
        return wraps(compute)(lambda: boxed().result)
