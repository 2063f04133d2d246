"""What is observed of two models: their predictions of a text, exchanges of parts, and nulls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import pandas as pd
import torch
from jaxtyping import Float, Int
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import BatchStates, Change, compare_batches
from thinkalike.evaluation.exchanges import PartChanges
from thinkalike.evaluation.forks import PartMove, beyond_forks, comparable_with_forks, part_moves
from thinkalike.instruments.diff.null_runs import NullRuns
from thinkalike.models.families import Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part
from thinkalike.states.contrasts import Contrasts, EncodedPrompts, encode_prompts, gaps


class MoveBeyondControl(NamedTuple):
    """How much farther modules moved than in the continued-training control."""

    z_scores: Float[Tensor, " parts"]
    """How far each module moved beyond the copies that were trained further."""

    p_value: float
    """The p-value of the module with the largest z-score, corrected for this choice."""


@dataclass
class Observations:
    """What is observed of two models.

    Attributes:
        base, changed: The models.
        rows: The text that both read.
        n_first_rows: How many rows, the first ones, are read again for exchanges of modules and
            for the null, which take many passes.
        margin: The margins of equivalence.
        contrasts: The pairs of texts, if there are any.
        difference_tables: The tables of the weights and settings that differ.
        changed_tokens: The tokens whose row of the embedding differs.
        parts: What the exchange of each module that differs does.
        outputs: What the exchange of each output alone does.
        null: What random changes of the same size do, or copies that were trained further (forks).
        changes: What the change does at each token, by batch.
        unread_token_numbers: What follows changed tokens that the text lacks, by the name of a
            headline number.
        directions: The rows of the table of principal directions.
        taught_tables: The tables that say what was taught.
        taught_numbers: The headline numbers that say so.
    """

    base: FrozenModel
    changed: FrozenModel
    rows: TokenRows
    n_first_rows: int
    margin: Mapping[str, float | None]
    contrasts: Contrasts | None = None
    difference_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    changed_tokens: Sequence[int] = ()
    parts: dict[Part, PartChanges] = field(default_factory=dict)
    outputs: dict[Place, PartChanges] = field(default_factory=dict)
    null: NullRuns = field(default_factory=NullRuns)
    changes: list[Change] = field(default_factory=list)
    unread_token_numbers: dict[str, float] = field(default_factory=dict)
    directions: list[dict[str, object]] = field(default_factory=list)
    taught_tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)
    taught_numbers: Mapping[str, float] = field(default_factory=dict)

    def read(self) -> list[BatchStates]:
        """Run base and changed model over all rows, and return the states of the first rows.

        States take much memory, so only those of the first `n_first_rows` rows are kept, in
        batches. For all rows, the differences of the models' outputs at each token are added to
        `changes`.
        """
        first_batches: list[BatchStates] = []
        n_rows_returned = 0
        # A batch ends with the first `n_first_rows` rows, and the next one begins behind them.
        for batch, change in compare_batches(
            self.base, self.changed, self.rows, self.n_first_rows
        ):
            self.changes.append(change)
            if n_rows_returned < self.n_first_rows:
                first_batches.append(batch)
                n_rows_returned += len(batch.tokens)
        return first_batches

    def documents(self, rows: int | None = None) -> Int[Tensor, " n"]:
        """Return the document of each token but the last of each row.

        Documents are numbered from 0, without gaps.

        Args:
            rows: How many rows are taken from the start of the text; None: all.
        """
        documents = self.rows.documents[:rows, :-1].flatten().long()
        renumbered: Tensor = documents.unique(return_inverse=True)[1]
        return renumbered

    def kl(self) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed) in nats after each token of all rows, but the last of each."""
        return torch.cat([change.tokens.kl for change in self.changes])

    def kl_of_first_rows(self) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed) in nats after each token of the first `n_first_rows` rows."""
        return self.kl()[: len(self.documents(self.n_first_rows))]

    def contrast_by_pair(self, model: FrozenModel) -> Float[Tensor, " p"]:
        """Return the contrast of each pair of texts, in nats; empty if there are no pairs.

        The two texts of a pair differ in a feature, such as number. The contrast is the log-odds
        of two continuations after the text with the feature, less that after the other text.

        Args:
            model: The base, the changed model, or a copy of the base; all have its tokenizer.
        """
        if self.contrasts is None:
            return torch.zeros(0)
        texts_without_feature, texts_with_feature = self._prompts
        # A gap is the log-odds of the two continuations after a text.
        return gaps(model, texts_with_feature) - gaps(model, texts_without_feature)

    @cached_property
    def _prompts(self) -> tuple[EncodedPrompts, EncodedPrompts]:
        """The tokens of both texts of each pair; all models have the same tokenizer."""
        assert self.contrasts is not None
        return encode_prompts(self.base, self.contrasts)

    @cached_property
    def parts_compared_with_control(self) -> list[Part]:
        """The modules that differ and can be compared with copies that were trained further.

        They are modules inside blocks, without norms.
        """
        return comparable_with_forks(self.base, list(self.parts))

    @property
    def has_continued_training_control(self) -> bool:
        """Whether there are copies trained further, and modules to compare with theirs."""
        return bool(self.null.moves and self.parts_compared_with_control)

    @cached_property
    def move_beyond_control(self) -> MoveBeyondControl:
        """How much farther modules moved than in copies of the base that were trained further.

        There is a z-score for each module of `parts_compared_with_control`, and the p-value of the
        largest one. Only how far a module moved relative to the other modules of the same model
        counts, as a different learning rate moves all of them farther.
        """
        moves_of_copies = []
        for moves in self.null.moves:
            moves_of_copy = []
            for weights, log_singular_value in moves:
                moves_of_copy.append(PartMove(weights, log_singular_value))
            moves_of_copies.append(moves_of_copy)
        moves_of_change = part_moves(self.base, self.changed, self.parts_compared_with_control)
        z_scores, p_value = beyond_forks(moves_of_change, moves_of_copies)
        return MoveBeyondControl(z_scores, p_value)
