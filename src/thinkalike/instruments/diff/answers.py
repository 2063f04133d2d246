"""The numbers of a diff: tables and headline numbers, with intervals over documents."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import Change, PartChanges, Seen, by_part, seen
from thinkalike.evaluation.language import document_numbers, ends_of
from thinkalike.instruments.diff.instrument import EXIT_STATUS
from thinkalike.job import Outcome
from thinkalike.measures.bootstrapping import bootstrap_interval, sum_by_document
from thinkalike.measures.changes import (
    beyond_null,
    directions_of_change,
    equivalence,
    excess_p,
    false_discovery_rates,
    rank_p,
)
from thinkalike.measures.estimates import FEWEST_GROUPS, Estimate, interval_around
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, parts_of, relative_change

FEWEST = 3  # occurrences of a token
CONTEXTS = 10  # places that are listed, each of another document
BEFORE = 12  # tokens of a context
NAMED = 6  # tokens that a direction raises or lowers
MEASURED = 64  # states from which a step is taken along a direction


@dataclass
class Answers:
    """Gathers what a change does, and makes tables of it.

    Attributes:
        first: the number of rows on which parts and null run, the first ones.
        parts: what each part that differs does there.
        null: KL of each random change or fork at each token there, (r, n).
        drift: the share of KL that each part has in each fork, of the parts that differ in their order.
    """

    base: FrozenModel
    changed: FrozenModel
    rows: TokenRows
    first: int
    margin: Mapping[str, float | None]
    parts: dict[Part, PartChanges] = field(default_factory=dict)
    null: Tensor = field(default_factory=lambda: torch.zeros(0, 0))
    drift: dict[Part, list[float]] = field(default_factory=dict)
    _changes: list[Change] = field(default_factory=list)
    _directions: list[dict[str, Any]] = field(default_factory=list)
    _p_of_parts: Tensor | None = None

    def add(self, change: Change) -> None:
        """Add a batch of rows."""
        self._changes.append(change)

    def beside(self, forks: Iterable[FrozenModel]) -> None:
        """Run forks of the base on the rows of the parts: their KL, and the share of each part that the change has."""
        rows = TokenRows(self.rows.tokens[: self.first], self.rows.documents[: self.first])
        null = []
        for fork in forks:
            batches, changes = zip(*seen(self.base, fork, rows, self.first), strict=True)
            null.append(torch.cat([each.tokens.kl for each in changes]))
            for part, found in by_part(self.base, fork, list(self.parts), batches, len(self.parts)).items():
                self.drift.setdefault(part, []).append(share_of(found, null[-1]))
        self.null = torch.stack(null)

    def documents(self, rows: int | None = None) -> Int[Tensor, " n"]:
        """Return the number of the document of each token, the last of a row left out."""
        return self.rows.documents[:rows, :-1].flatten().long().unique(return_inverse=True)[1]

    def kl(self) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed) of each token."""
        return torch.cat([each.tokens.kl for each in self._changes])

    def outcome(self) -> Outcome:
        """Return all tables and headline numbers."""
        tables = {"layers": self._layers(), "nulls": self._nulls(), "tokens": self._tokens(),
                  "contexts": self._contexts(), "directions": pd.DataFrame(self._directions)}  # fmt: skip
        tables = {name: table for name, table in tables.items() if len(table)}
        parts = self._parts()
        return Outcome(parts, self._scalars(), tables=tables, blank=list(parts.columns))

    def _scalars(self) -> dict[str, float]:
        parts, documents = [each.tokens for each in self._changes], self.documents()
        kl, reverse, flips, before, after = (torch.cat(column).double() for column in zip(*parts, strict=True))
        values = {"kl": kl, "flips": flips, "loss_change": after - before, "reverse_kl": reverse}
        values |= {"loss_base": before, "loss_changed": after}
        found: dict[str, float] = {}
        for name, each in values.items():
            ends = ends_of(name, over_documents(each, documents))
            found |= {key: value for key, value in ends.items() if math.isfinite(value)}
        found |= document_numbers(torch.bincount(documents)) | {
            "tokens": float(len(kl)),
            "parts": float(len(self.parts)),
            "nulls": float(len(self.null)),
        }
        if len(self.null):
            mine = kl[: self.null.shape[1]].mean()
            theirs = self.null.double().mean(1)
            found |= {"kl_of_part": float(mine), "null_low": float(theirs.min()), "null_high": float(theirs.max()),
                      "null_p": float(rank_p(mine, theirs)), "null_p_less": float(rank_p(-mine, -theirs))}  # fmt: skip
        if self._p_of_parts is not None:
            found["part_p"] = float(self._p_of_parts)
        return found | self._verdicts(values, documents)

    def _verdicts(self, values: dict[str, Tensor], documents: Tensor) -> dict[str, float]:
        """Return the exit status of each margin that is given, and of all; nothing without a margin."""
        found = {}
        for name, margin in self.margin.items():
            if margin is not None:
                column = "loss_change" if name == "loss" else name
                _, low, high = over_documents(values[column], documents)
                found[f"exit_status_{name}"] = float(EXIT_STATUS[equivalence(float(low), float(high), margin)])
        if not found:
            return {}
        status = 1.0 if 1.0 in found.values() else max(found.values())
        return {**found, "exit_status": status}

    def _layers(self) -> pd.DataFrame:
        distance = torch.cat([each.distance for each in self._changes], 1)
        layers = list(range(-1, len(distance) - 1))
        return pd.DataFrame({"layer": layers, **ends_of("distance", over_documents(distance, self.documents()))})

    def _parts(self) -> pd.DataFrame:
        documents, whole = self.documents(self.first), self.kl()
        whole = whole[: len(documents)].double()
        rows = []
        for part in parts_of(self.base):
            row: dict[str, Any] = {"component": part.component, "layer": part.layer}
            if part in self.parts:
                row["weights"] = relative_change(self.base, self.changed, part)
                row |= _of_part(self.parts[part], whole, documents)
                rows.append(row)
            else:
                rows.append(row | dict.fromkeys(("weights", "entering", "goes", "comes", "share"), 0.0))
        table = pd.DataFrame(rows)
        if self.drift:
            tried = [place for place, part in enumerate(parts_of(self.base)) if part in self.drift]
            null = torch.tensor([self.drift[part] for part in self.parts], dtype=torch.float64).T
            beyond, self._p_of_parts = beyond_null(torch.from_numpy(table["share"].to_numpy()[tried]), null)
            table.loc[tried, "drift"], table.loc[tried, "beyond"] = null.mean(0).numpy(), beyond.numpy()
        return table

    def _nulls(self) -> pd.DataFrame:
        return pd.DataFrame([{"number": number, "kl": float(kl.mean())} for number, kl in enumerate(self.null)])

    def _tokens(self) -> pd.DataFrame:
        """Return the tokens after which the prediction changed beyond the null's, the most certain first."""
        if not len(self.null):
            return pd.DataFrame()
        tokens, own = self.rows.tokens[: self.first, :-1].flatten().long(), self.kl()[: self.null.shape[1]]
        names, group, counts = tokens.unique(return_inverse=True, return_counts=True)
        means = sum_by_document(torch.cat([own[None], self.null]), group, len(names)) / counts
        often = counts >= FEWEST
        if int(often.sum()) < 2:
            return pd.DataFrame()
        factor, p = excess_p(means[0, often], means[1:, often])
        table = pd.DataFrame({
            "token": [self._written(token) for token in names[often].tolist()], "count": counts[often].tolist(),
            "kl": means[0, often].tolist(), "null": means[1:, often].mean(0).tolist(), "factor": factor.tolist(),
            "p": p.tolist(), "q": false_discovery_rates(p).tolist(),
        })  # fmt: skip
        return table.sort_values(["q", "p"], kind="stable", ignore_index=True)

    def _contexts(self) -> pd.DataFrame:
        """Return the places where the prediction changed most, the greatest of each document."""
        kl, documents = self.kl(), self.documents()
        tops = torch.cat([each.tops for each in self._changes], 1)
        found: dict[int, dict[str, Any]] = {}
        width = self.rows.context - 1
        for place in kl.argsort(descending=True).tolist():
            if len(found) == CONTEXTS or kl[place] == 0:
                break
            row, column = divmod(place, width)
            before = self.rows.tokens[row, max(column + 1 - BEFORE, 0) : column + 1].tolist()
            found.setdefault(int(documents[place]), {
                "kl": float(kl[place]), "position": column, "context": repr(self.base.tokenizer.decode(before)),
                "before": self._written(int(tops[0, place])), "after": self._written(int(tops[1, place])),
                "next": self._written(int(self.rows.tokens[row, column + 1])),
            })  # fmt: skip
        return pd.DataFrame(list(found.values()))

    def directions_at(self, batches: Sequence[Seen]) -> None:
        """Find the principal directions of the change after the block at which most of it enters."""
        inside = {part: each.entering.mean() for part, each in self.parts.items() if each.entering is not None}
        if not inside:
            return
        layer = max(inside, key=lambda part: float(inside[part])).layer
        before, after = (torch.cat([side(own)[layer + 1][:, :-1].flatten(0, 1) for own in batches])
                         for side in (lambda own: own.base, lambda own: own.changed))  # fmt: skip
        half = halves(self.documents(self.first)).to(before.device)
        if not half.any() or half.all() or torch.equal(before, after):
            return
        found = directions_of_change(after - before, half)
        along = ((after - before).double() @ found.directions.T).square().mean(0).sqrt()
        for number, direction in enumerate(found.directions):
            raised, lowered = self._read(before, along[number] * direction, layer)
            numbers = {"share": float(found.share[number]), "stability": float(found.stability[number])}
            words = {"raises": raised, "lowers": lowered}
            self._directions.append({"layer": layer, "direction": number + 1, **numbers, **words})

    @torch.no_grad()
    def _read(self, states: Float[Tensor, "n d"], step: Float[Tensor, " d"], layer: int) -> tuple[str, str]:
        """Return the tokens whose logits a step raises and lowers most, read by the final norm and unembedding."""
        chosen = states[:: max(len(states) // MEASURED, 1)]
        change = (self.base.finish(chosen + step.to(chosen)) - self.base.finish(chosen)).mean(0)
        raised, lowered = (change.topk(NAMED, largest=largest).indices.tolist() for largest in (True, False))
        return tuple(" ".join(map(self._written, each)) for each in (raised, lowered))  # type: ignore[return-value]

    def _written(self, token: int) -> str:
        return repr(self.base.tokenizer.decode([token]))


def over_documents(values: Float[Tensor, "*b n"], documents: Int[Tensor, " n"]) -> Estimate:
    """Return means over tokens with intervals over documents, without ends if these are fewer than `FEWEST_GROUPS`."""
    count = int(documents.max()) + 1
    if count < FEWEST_GROUPS:
        return interval_around(values.double().mean(-1), math.inf)
    sums = sum_by_document(values, documents, count)
    return bootstrap_interval(sums, torch.bincount(documents).double())


def _of_part(found: PartChanges, whole: Float[Tensor, " n"], documents: Int[Tensor, " n"]) -> dict[str, float]:
    """Return what enters at a part, and the shares of the whole KL that go, that come, and their mean.

    The mean is over the two orders in which this part and all others change (Shapley 1953, of two players).
    """
    row = dict.fromkeys(("entering", "goes", "comes", "share"), math.nan)
    if found.entering is not None:
        row |= ends_of("entering", over_documents(found.entering, documents))
    if found.without is None or found.alone is None or not whole.sum():
        return row
    without, alone = (each.double() for each in (found.without, found.alone))
    count = int(documents.max()) + 1
    sums = sum_by_document(torch.stack([(whole - without + alone) / 2, whole]), documents, count)
    few = count < FEWEST_GROUPS or int((sums[1] > 0).sum()) < 2
    share = interval_around((sums[0].sum() / sums[1].sum()), math.inf) if few else bootstrap_interval(sums[0], sums[1])
    shares = {"goes": float(1 - without.sum() / whole.sum()), "comes": float(alone.sum() / whole.sum())}
    return row | shares | ends_of("share", share)


def share_of(found: PartChanges, whole: Float[Tensor, " n"]) -> float:
    """Return the mean of the shares of KL that go and that come with a part; NaN if it was not tried."""
    if found.without is None or found.alone is None:
        return math.nan
    return float((whole - found.without + found.alone).double().sum() / (2 * whole.double().sum()))


def halves(documents: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
    """Return which tokens are of every second document."""
    return documents % 2 == 0
