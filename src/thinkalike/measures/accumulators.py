"""What measures of layer pairs gather batch by batch: metrics of torchmetrics.

Each batch adds a few small tensors to lists, so batches may come in any order and from several processes, and
`state_dict` has all that is needed to resume. Apart from the pure measures, as torchmetrics takes a second to import.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from thinkalike.measures.chance import Chance
from thinkalike.measures.estimates import Estimate

APART = 2**32  # between the numbers of the rows of two batches, where each row is a document
States = Sequence[Float[Tensor, " ..."]]


def from_everyone(state: Tensor, group: Any = None) -> list[Tensor]:
    """Return the states of all processes: of any shapes, where torchmetrics wants the same number of axes of each."""
    found: list[Tensor] = [state] * distributed.get_world_size(group)
    distributed.all_gather_object(found, state, group)
    return without_empty([each.to(state.device) for each in found])


def without_empty(states: Sequence[Tensor]) -> list[Tensor]:
    """Leave out the states of processes without any batch, whose dtype is not that of the others."""
    return [each for each in states if len(each)] or [*states[:1]]


class LayerPairEstimate(Estimate):
    """A measure of l layers of a source with m of a target, (l, m), and of the layers within each.

    Args:
        across: The values across the two models, with their intervals, (l, m).
        within_source, within_target: The same within each model, (l, l) and (m, m); None where it is not measured.
        batches: How many batches there were.
        documents: How many different documents the rows of all batches are of; of fewer than 8 there is no interval.
        rows_used: The share of the rows that stood in groups of one token, where rows are compared within such groups.
        chance: The null by permutations, None without any.
    """

    label: ClassVar[str] = "value"  # what plots call a value

    def __init__(
        self,
        across: Estimate,
        batches: int,
        documents: int,
        *,
        within_source: Estimate | None = None,
        within_target: Estimate | None = None,
        rows_used: float | None = None,
        chance: Chance | None = None,
    ):
        super().__init__(*across)
        self.batches, self.documents, self.rows_used, self.chance = batches, documents, rows_used, chance
        self.within_source, self.within_target = within_source, within_target

    def __repr__(self) -> str:
        l, m = self.value.shape  # noqa: E741
        closest = f"{float(self.value.min()):.3f} to {float(self.value.max()):.3f}"
        width = f"intervals at most {self.widest_interval():.3g} wide"
        return f"{type(self).__name__}({l} x {m} layers, {self.batches} batches: {closest}, {width})"

    def widest_interval(self) -> float:
        """Return the width of the widest interval of `value`, `within_source` and `within_target`."""
        known = (self, *filter(None, (self.within_source, self.within_target)))
        return max(float((estimate.high - estimate.low).max()) for estimate in known)


class Accumulator(Metric):
    """Gathers a measure of layer pairs batch by batch; the order of the batches does not matter.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        given: "token" compares rows within groups of one token; "none" compares all rows.
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False
    parts: ClassVar[tuple[str, ...]] = ()  # what a batch may add besides its number and the documents of its rows
    numbers: list[Tensor] | Tensor
    documents: list[Tensor] | Tensor

    def __init__(self, source_layers: int, target_layers: int, *, given: str = "none", **kwargs: Any):
        super().__init__(**{"dist_sync_fn": from_everyone, "compute_with_cache": False, **kwargs})
        self.source_layers, self.target_layers, self.given = source_layers, target_layers, given
        for name in ("numbers", "documents", *self.parts):
            self.add_state(name, default=[], dist_reduce_fx="cat", persistent=True)

    @property
    def update_called(self) -> bool:
        """Whether there is a batch, also one from a `state_dict`."""
        return len(self.numbers) > 0

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Add one batch as `update` does, and return the estimate of this batch alone."""
        before = {name: len(state) for name, state in self.metric_state.items()}
        self.update(*args, **kwargs)
        alone = self.clone()
        for name, count in before.items():
            setattr(alone, name, getattr(alone, name)[count:])
        return type(alone).compute(alone)

    def load_state_dict(self, state_dict: Any, strict: bool = True, assign: bool = False) -> Any:
        """Take over the batches of a `state_dict`, whose lists stay as they are."""
        copied = dict(state_dict)
        for name in self.metric_state:
            if isinstance(state := copied[name], Tensor):  # of several processes, in one piece
                state = state.split(len(state) if name == "documents" else 1) if len(state) else ()
            copied[name] = [*state]
        return super().load_state_dict(copied, strict, assign)

    def next_number(self, number: int | None) -> int:
        """Return the number of a batch: the given one, or else the next."""
        return max((int(each) for each in self.numbers), default=-1) + 1 if number is None else number

    def check(self, source: States, target: States, groups: Tensor | None) -> None:
        """Raise a ValueError unless a batch has the announced layers, and groups where they are wanted."""
        announced, counts = (self.source_layers, self.target_layers), (len(source), len(target))
        if counts != announced:
            raise ValueError(f"{announced[0]} and {announced[1]} layers were announced, but {counts} came")
        if (groups is None) != (self.given == "none"):
            raise ValueError(f"groups, the token of each state, come with given=token alone, and this is {self.given}")

    def add(self, number: int, documents: Int[Tensor, " n"], **parts: Shaped[Tensor, " ..."]) -> None:
        """Add what a batch leaves to the lists."""
        self.documents.append(documents.detach().to(self.device))  # type: ignore[union-attr]
        for name, part in {"numbers": torch.tensor(number), **parts}.items():
            getattr(self, name).append(part.detach()[None].to(self.device))

    def gathered(self) -> dict[str, Tensor]:
        """Return what all batches left, by name, in the order of their numbers; the documents are those of all rows.

        Raises:
            ValueError: There is no batch, or two have one number.
        """
        if not self.update_called:
            raise ValueError("there is no mean of no batches: call update first")
        found = {name: dim_zero_cat(state) for name, state in self.metric_state.items() if len(state)}
        numbers, order = found["numbers"].sort()
        if repeated := numbers[1:][numbers.diff() == 0].tolist():
            raise ValueError(f"two batches have number {repeated[0]}: number those of one run, update(..., number=)")
        whole = {name: each[order] for name, each in found.items() if len(each) == len(order)}
        return {**found, **whole, "documents": found["documents"]}
