"""A metric of torchmetrics that gathers a measure of layer pairs batch by batch.

Each batch adds a few small tensors to lists, so batches may come in any order and from several
processes. This is not in the modules of the pure measures, as torchmetrics takes a second to
import.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor, distributed
from torchmetrics import Metric
from torchmetrics.utilities import dim_zero_cat

from thinkalike.arguments import BatchNumber, Count, check_choice, takes_arrays
from thinkalike.measures.contract import Batch, States

CONDITIONS = ("none", "token")


def states_of_processes(
    state: Tensor, group: distributed.ProcessGroup | None = None
) -> list[Tensor]:
    """Return the state of a metric in each process of a group, whatever their shapes.

    Processes without any batch are left out. torchmetrics' own function for this requires that all
    states have the same number of axes.

    Args:
        state: The state in this process.
        group: The processes; None: all.
    """
    states: list[Tensor] = [state] * distributed.get_world_size(group)
    distributed.all_gather_object(states, state, group)  # fills `states`
    return without_empty([tensor.to(state.device) for tensor in states])


def without_empty(states: Sequence[Tensor]) -> list[Tensor]:
    """Return those of the states of several processes that have entries.

    The state of a process without any batch is left out, as it is empty and of a default dtype. If
    all states are empty, the first one is returned alone.
    """
    filled = [state for state in states if len(state)]
    if not filled:
        return [*states[:1]]
    return filled


class Accumulator(Metric):
    """Gathers a measure of layer pairs batch by batch; the order of the batches does not matter.

    Args:
        source_layers, target_layers: How many layers a batch brings.
        conditional_on: "token" compares rows within groups of one token; "none" compares all rows.
        kwargs: Options of `torchmetrics.Metric`.
    """

    is_differentiable = False
    full_state_update = False
    # The names of the tensors that a batch may add, besides its number and the documents of its
    # rows.
    batch_states: ClassVar[tuple[str, ...]] = ()
    numbers: list[Tensor] | Tensor
    documents: list[Tensor] | Tensor

    @takes_arrays
    def __init__(
        self,
        source_layers: Count,
        target_layers: Count,
        *,
        conditional_on: str = "none",
        **kwargs: object,
    ):
        """Store the settings, and begin each state as an empty list.

        Each batch later adds an entry to each list; a result is computed from them at the end.

        Args:
            source_layers, target_layers: How many layers a batch brings.
            conditional_on: "token" compares rows within groups of one token, "none" all rows.
            kwargs: Options of `torchmetrics.Metric`.
        """
        check_choice("conditional_on", conditional_on, CONDITIONS)
        # States of processes may have different shapes, which `states_of_processes` joins. Results
        # are not cached.
        options = {"dist_sync_fn": states_of_processes, "compute_with_cache": False}
        super().__init__(**(options | kwargs))
        self.source_layers = source_layers
        self.target_layers = target_layers
        self.conditional_on = conditional_on
        for name in ("numbers", "documents", *self.batch_states):
            self.add_state(name, default=[], dist_reduce_fx="cat", persistent=True)

    @property
    def update_called(self) -> bool:
        """Whether there is a batch, which may have been loaded with a `state_dict`."""
        return len(self.numbers) > 0

    def forward(self, *args: object, **kwargs: object) -> object:
        """Add one batch as `update` does, and return the estimate of this batch alone.

        Results are kept in lists with an entry for each batch, so a copy of this metric without
        the earlier entries is a metric of the new batch.
        """
        lengths_before = {name: len(state) for name, state in self.metric_state.items()}
        self.update(*args, **kwargs)
        batch_alone = self.clone()
        for name, length in lengths_before.items():
            setattr(batch_alone, name, getattr(batch_alone, name)[length:])
        # Not `batch_alone.compute()`, which torchmetrics wraps to gather the batches of all
        # processes.
        return type(batch_alone).compute(batch_alone)

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> object:
        """Replace the batches of this metric by those of a `state_dict`, which is not changed.

        Here, a state is a list with a tensor for each batch. If several processes saved it, it is
        a single tensor with a row for each batch, and is split into such a list. "documents" has a
        row for each token instead, and cannot be split: it becomes a list of one tensor.
        """
        lists = dict(state_dict)
        for name in self.metric_state:
            state = lists[name]
            if isinstance(state, Tensor) and not len(state):
                lists[name] = []
            elif isinstance(state, Tensor):
                rows_per_entry = len(state) if name == "documents" else 1
                lists[name] = list(state.split(rows_per_entry))
            else:
                lists[name] = list(state)
        return super().load_state_dict(lists, strict, assign)

    @takes_arrays
    def update(
        self,
        source: States,
        target: States,
        mask: Shaped[Tensor, " ..."] | None = None,
        number: BatchNumber = None,
        groups: Int[Tensor, " ..."] | None = None,
        documents: Int[Tensor, " ..."] | None = None,
    ) -> None:
        """Add one batch: the states of the same tokens, or rows, in both models.

        Args:
            source, target: The states of each layer, (b, t, d) or (n, d); widths and dtypes may
                differ.
            mask: True for each token that counts, (b, t); None: all count.
            number: The number of this batch in the whole run; None: the next one. If several
                processes share a run, or metrics are merged later, it must be given.
            groups: The token of each state, (b, t) or (n,), for conditional_on="token" only.
            documents: The number of the document of each state, or of another group whose rows
                depend on each other; None: each row is its own document. A document has the same
                number in all batches. Intervals are jackknifed: they leave out, at a time, all
                documents whose numbers have the same last digit. Nulls permute whole documents.

        Raises:
            ValueError: Arguments do not fit, or the measure refuses a layer. Nothing is added.
        """
        batch = Batch([source, target], mask, self.next_number(number), groups, documents)
        self.gather(batch)

    @abstractmethod
    def gather(self, batch: Batch) -> None:
        """Add a batch, or raise a ValueError and add nothing; see `update`."""

    def next_number(self, number: int | None) -> int:
        """Return the number of a new batch: the given one, or one more than the largest so far.

        Args:
            number: The number that `update` was given; None: it was given none.
        """
        if number is not None:
            return number
        if not len(self.numbers):
            return 0
        return int(dim_zero_cat(self.numbers).max()) + 1

    def check(self, source: States, target: States, groups: Tensor | None) -> None:
        """Raise a ValueError if a batch does not fit the settings of this metric.

        The batch must have as many layers as the metric was made for. It must say the token of
        each state if the metric only compares rows of the same token, and must not say it
        otherwise.

        Args:
            source, target: The states of each layer.
            groups: The token of each state; None if the batch has no groups.
        """
        announced = (self.source_layers, self.target_layers)
        counts = (len(source), len(target))
        if counts != announced:
            raise ValueError(
                f"source and target have {counts[0]} and {counts[1]} layers, but {announced[0]} "
                f"and {announced[1]} layers were announced, as source_layers and target_layers"
            )
        if (groups is None) != (self.conditional_on == "none"):
            raise ValueError(
                "groups, the token of each state, come with conditional_on=token alone, and this "
                f"is {self.conditional_on}"
            )

    def add(
        self, number: int, documents: Int[Tensor, " n"], **states: Shaped[Tensor, " ..."]
    ) -> None:
        """Append the results of a batch to the stored lists, without gradients.

        Args:
            number: The number of the batch.
            documents: The document of each of its rows.
            states: The results by name. The names are among `batch_states` of the class; a batch
                need not have all of them.
        """
        self.documents.append(documents.detach().to(self.device))  # type: ignore[union-attr]
        batch_number = torch.full((1,), number, device=self.device)
        self.numbers.append(batch_number)  # type: ignore[union-attr]
        for name, state in states.items():
            with_batch_axis = state.detach()[None]
            getattr(self, name).append(with_batch_axis.to(self.device))

    def gathered(self) -> dict[str, Tensor]:
        """Return the stored tensors by name, each with a row for each batch, in order of number.

        "documents" has instead a number for each row of the states in all batches. A tensor that
        only some batches stored has a row for each of these, in the order in which they came. One
        that no batch stored is left out.

        Raises:
            ValueError: There is no batch, or two batches have the same number.
        """
        if not self.update_called:
            raise ValueError("there is no mean of no batches: call update first")
        states = {
            name: dim_zero_cat(state) for name, state in self.metric_state.items() if len(state)
        }
        numbers, order = states["numbers"].sort()
        repeated = numbers[1:][numbers.diff() == 0].tolist()
        if repeated:
            raise ValueError(
                f"two batches have number {repeated[0]}: "
                "number those of one run, update(..., number=)"
            )
        for name, state in states.items():
            # Of a tensor that only some batches stored, it is not known which ones these are.
            is_of_all_batches = len(state) == len(order)
            if name != "documents" and is_of_all_batches:
                states[name] = state[order]
        return states
