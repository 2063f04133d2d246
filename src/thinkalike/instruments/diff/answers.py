"""The numbers of a diff: tables and headline numbers, with intervals over documents."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float, Int
from scipy.special import stdtrit
from torch import Tensor

from thinkalike.data.rows import TokenRows
from thinkalike.evaluation.changes import LOGITS_AT_ONCE, BatchStates, Change, compare_batches
from thinkalike.evaluation.columns import document_counts, interval_columns
from thinkalike.evaluation.document_means import mean_over_documents
from thinkalike.evaluation.exchanges import PartChanges
from thinkalike.evaluation.forks import PartMove, beyond_forks, comparable_with_forks, part_moves
from thinkalike.job import Outcome, Work
from thinkalike.measures.changes import (
    Verdict,
    above_null,
    directions_of_change,
    divergence,
    equivalence,
    excess,
    false_discovery_rates,
    rank_p,
)
from thinkalike.measures.estimates import (
    FEWEST_GROUPS,
    ROUNDING,
    bootstrap_interval,
    interval_around,
    seeded,
    sum_by_document,
)
from thinkalike.models.families import Place
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.parts import Part, norms, parts_of
from thinkalike.processes import counted
from thinkalike.states.contrasts import Contrasts, EncodedPrompts, encode_prompts, gaps, kind_of_token

SIGNS = "signs"  # the kind of null whose changes stay at their entries
NULLS = 19  # random changes of each kind: the fewest that can be exceeded with p = .05
EXIT_STATUS = {"equivalent": 0, "not equivalent": 1, "undecided": 3}
FEWEST = 3  # occurrences of a token
LEVEL = 0.05  # of all tests
PLACES, GAP = 512, 8  # of tokens that are put into the text, and how many tokens apart
CONTEXTS = 10  # places that are listed, each of another document
BEFORE = 12  # tokens of a context
NAMED = 6  # tokens that a direction raises or lowers
BLANK = ("amount", "spread", "size", "head")  # of operations and outputs that have none
UNBOUNDED = (-math.inf, math.inf)
BOUNDS = {  # the least and the greatest value of a token
    "kl": (0.0, math.inf),
    "reverse_kl": (0.0, math.inf),
    "flips": (0.0, 1.0),
    "distance": (0.0, math.inf),
}
MEASURED = 64  # states from which a step is taken along a direction


@dataclass
class Answers:
    """Gathers what a change does, and makes tables of it."""

    base: FrozenModel
    changed: FrozenModel
    rows: TokenRows
    first: int  # rows, the first ones, on which parts and null run
    margin: Mapping[str, float | None]
    contrasts: Contrasts | None = None  # pairs of texts
    exact: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # tables of the weights and settings that differ
    tokens: Sequence[int] = ()  # whose row of the embedding differs
    parts: dict[Part, PartChanges] = field(default_factory=dict)  # what each part that differs does
    # what each random change or fork does: its `kind`, `kl` of tokens, `effects` of pairs, and `moves` of parts
    null: dict[str, list[Any]] = field(default_factory=lambda: {"kind": [], "kl": [], "effects": [], "moves": []})
    outputs: dict[Place, PartChanges] = field(default_factory=dict)  # what the exchange of an output alone does
    changes: list[Change] = field(default_factory=list)
    unread: dict[str, float] = field(default_factory=dict)
    _directions: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> list[BatchStates]:
        """Run both models over all rows; returns the batches of the first rows."""
        batches: list[BatchStates] = []
        for own, change in compare_batches(self.base, self.changed, self.rows, self.first):
            self.changes.append(change)
            if sum(len(each.tokens) for each in batches) < self.first:
                batches.append(own)
        return batches

    def beside(
        self,
        kinds: Mapping[str, Callable[[int], AbstractContextManager[FrozenModel]]],
        start: int,
        batches: Sequence[BatchStates],
        work: Work,
    ) -> None:
        """Run `NULLS` models of each kind of null.

        Args:
            kinds: by name, what opens a model of the null by its number.
            start: the block before which all of these models are as the base.
        """
        self.null = work.resume("null") or self.null
        numbered = [(kind, number) for kind in kinds for number in range(NULLS)]
        for kind, number in counted(numbered[len(self.null["kl"]) :], "model of the null"):
            with kinds[kind](number) as model:
                kl = torch.cat([own.kl(model, start, own.base) for own in batches])
                self.null["kind"].append(kind)
                self.null["kl"].append(kl)
                self.null["effects"].append(torch.zeros(0) if kind == SIGNS else self.effects(model))
                if model is not self.base:
                    self.null["moves"].append([tuple(each) for each in part_moves(self.base, model, self._comparable)])
            work.keep("null", self.null)

    def _runs_of(self, kind: str) -> Float[Tensor, "r n"]:
        """Return KL of each token of the models of one kind of null."""
        runs = zip(self.null["kind"], self.null["kl"], strict=True)
        return torch.stack([kl for name, kl in runs if name == kind])

    def _moved_null(self, what: str) -> Float[Tensor, "r n"]:
        """Return what the null's models did, forks or changes at random places, such as the `kl` of each token.

        Random signs are left out: where only the embedding of a token changed, they change that embedding as well, and
        so cannot tell this token from the remaining ones.
        """
        runs = zip(self.null["kind"], self.null[what], strict=True)
        return torch.stack([values for name, values in runs if name != SIGNS])

    @cached_property
    def _comparable(self) -> list[Part]:
        return comparable_with_forks(self.base, list(self.parts))

    def effects(self, model: FrozenModel) -> Float[Tensor, " p"]:
        """Return how far the counterpart of each pair moves the log-odds of its continuations in a model, in nats."""
        if self.contrasts is None:
            return torch.zeros(0)
        texts, counterparts = self._prompts
        return gaps(model, counterparts) - gaps(model, texts)

    @cached_property
    def _prompts(self) -> tuple[EncodedPrompts, EncodedPrompts]:
        """The pairs as all models read them, as their tokenizers are the same."""
        assert self.contrasts is not None
        return encode_prompts(self.base, self.contrasts)

    @torch.no_grad()
    def read_unread(self) -> None:
        """Put tokens whose embedding differs, and that the text does not hold, into it, and compare what follows them.

        About `PLACES` places get one, each of another token while there are enough; intervals are over rows.
        """
        held = set(self.rows.tokens[:, :-1].unique().tolist())
        unread = torch.tensor([token for token in self.tokens if token not in held])
        self.unread = {"tokens_changed": float(len(self.tokens)), "tokens_unread": float(len(unread))}
        if not len(unread):
            return
        count = min(max(PLACES * GAP // self.rows.context, 2), len(self.rows))
        tokens = self.rows.tokens[:count].long().clone()
        slots = torch.zeros_like(tokens, dtype=torch.bool)
        slots[:, GAP // 2 : -1 : GAP] = True
        order = unread[torch.randperm(len(unread), generator=seeded(0))]
        tokens[slots] = order.repeat(-(-int(slots.sum()) // len(order)))[: int(slots.sum())]
        kl, flips = [], []
        at_once = max(LOGITS_AT_ONCE // (self.base.vocabulary * self.rows.context), 1)
        for row, chosen in zip(tokens.split(at_once), slots.split(at_once), strict=True):
            ends = ((model, model.head(row, model.n_layers - 1)[chosen]) for model in (self.base, self.changed))
            before, after = (model.finish(end).float().log_softmax(-1) for model, end in ends)
            kl.append(divergence(before, after).cpu())
            flips.append((before.argmax(1) != after.argmax(1)).cpu())
        rows = torch.arange(count)[:, None].expand_as(slots)[slots]
        for name, values in (("unread_kl", torch.cat(kl)), ("unread_flips", torch.cat(flips).double())):
            bounds = BOUNDS[name.removeprefix("unread_")]
            self.unread |= interval_columns(name, mean_over_documents(values, rows, bounds=bounds))

    def documents(self, rows: int | None = None) -> Int[Tensor, " n"]:
        """Return the number of the document of each token, the last of a row left out."""
        return self.rows.documents[:rows, :-1].flatten().long().unique(return_inverse=True)[1]

    def kl(self) -> Float[Tensor, " n"]:
        """Return KL(base ‖ changed) of each token."""
        return torch.cat([each.tokens.kl for each in self.changes])

    def outcome(self) -> Outcome:
        """Return all tables and headline numbers."""
        classes, words, parts = self._classes(), self._words(), self._parts()
        mean_kl = [float(kl.mean()) for kl in self.null["kl"]]
        nulls = pd.DataFrame({"number": range(len(mean_kl)), "kind": self.null["kind"], "kl": mean_kl})
        tables = {"layers": self._layers(), "nulls": nulls, "tokens": self._tokens(), "classes": classes,
                  "words": words, "contexts": self._contexts(),
                  "directions": pd.DataFrame(self._directions), "outputs": self._outputs(), **self.exact}  # fmt: skip
        tables = {name: table for name, table in tables.items() if len(table)}
        numbers = self._scalars({"class": classes, "word": words})
        return Outcome(parts, numbers, tables=tables, blank=[*parts.columns, *BLANK])

    def _scalars(self, groups: Mapping[str, pd.DataFrame]) -> dict[str, float]:
        parts, documents = [each.tokens for each in self.changes], self.documents()
        kl, reverse, flips, before, after = (torch.cat(column).double() for column in zip(*parts, strict=True))
        values = {"kl": kl, "flips": flips, "loss_change": after - before, "reverse_kl": reverse,
                  "loss_base": before, "loss_changed": after}  # fmt: skip
        found = document_counts(torch.bincount(documents))
        counts = len(kl), len(self.parts), len(self.exact.get("settings", ())), len(self.null["kl"])
        found |= zip(("tokens", "parts", "settings", "nulls"), map(float, counts), strict=True)
        found |= {key: value for key, value in self.unread.items() if math.isfinite(value)}
        for name, each in values.items():
            ends = interval_columns(name, mean_over_documents(each, documents, bounds=BOUNDS.get(name, UNBOUNDED)))
            found |= {key: value for key, value in ends.items() if math.isfinite(value)}
        few = self.rows.tokens[: self.first, :-1].numel()
        if self.parts or self.outputs:
            found |= {"kl_of_part": float(kl[:few].mean()), "tokens_of_part": float(few)}
        for kind in dict.fromkeys(self.null["kind"]):
            name = SIGNS if kind == SIGNS else "null"
            found |= beside_runs(name, kl[:few].mean(), self._runs_of(kind).double().mean(1))
        if len(words := groups["word"]):
            found |= {"contrast_base": words["before"].mean(), "contrast_change": words["change"].mean()}
        if self.null["moves"] and self._comparable:
            found["part_p"] = self._beyond_drift[1]
        return found | self._verdicts(found, groups)

    def _verdicts(self, numbers: Mapping[str, float], groups: Mapping[str, pd.DataFrame]) -> dict[str, float]:
        """Return the exit status of each margin that is given, and of all together.

        Each token class and each word must be within its margin, by intervals that hold for all of them at once, and so
        must what follows changed tokens that the text does not hold.
        """
        verdicts: dict[str, Verdict] = {}
        for name, margin in self.margin.items():
            if margin is not None:
                column = {"loss": "loss_change", "class": "kl", "word": "change"}.get(name, name)
                tested = groups[name].to_dict("records") if name in groups else [numbers]
                ends = [(each.get(f"{column}_low", -math.inf), each.get(f"{column}_high", math.inf)) for each in tested]
                if (own := f"unread_{name}") in numbers:
                    ends.append((numbers.get(f"{own}_low", -math.inf), numbers.get(f"{own}_high", math.inf)))
                verdicts[name] = worst([equivalence(*each, margin) for each in ends] or ["undecided"])
        found = {f"exit_status_{name}": float(EXIT_STATUS[verdict]) for name, verdict in verdicts.items()}
        return {**found, "exit_status": float(EXIT_STATUS[worst(verdicts.values())])} if verdicts else {}

    def _layers(self) -> pd.DataFrame:
        distance = torch.cat([each.distance for each in self.changes], 1)
        layers = list(range(-1, len(distance) - 1))
        distances = mean_over_documents(distance, self.documents(), bounds=BOUNDS["distance"])
        return pd.DataFrame({"layer": layers, **interval_columns("distance", distances)})

    def _parts(self) -> pd.DataFrame:
        documents, rows, every = self.documents(self.first), [], parts_of(self.base)
        whole = self.kl()[: len(documents)].double()
        for part in every:
            row = {"component": part.component, "layer": part.layer, "weights": 0.0}
            row |= dict.fromkeys(("entering", "goes", "comes", "share"), math.nan if part in self.parts else 0.0)
            if part in self.parts:
                change, before = norms(self.base, self.changed, part.paths)
                # The weights of an adapter have none in the base from which they could differ.
                relative = change / (before or 1.0) if change else math.nan
                row |= {"weights": relative, **_of_part(self.parts[part], whole, documents)}
            rows.append(row)
        table = pd.DataFrame(rows)
        if self.null["moves"] and self._comparable:
            table.loc[[part in self._comparable for part in every], "beyond"] = self._beyond_drift[0].numpy()
        return table

    def _outputs(self) -> pd.DataFrame:
        """Return the share of KL of each output that was exchanged, the greatest first."""
        documents = self.documents(self.first)
        whole = self.kl()[: len(documents)].double()
        rows: list[dict[str, Any]] = []
        for place, changes in self.outputs.items():
            head = math.nan if place.head is None else place.head
            shares = _of_part(changes, whole, documents)
            rows.append({"output": place.site, "layer": int(place), "head": head, **shares})
        rows.sort(key=lambda row: -row["share"])
        return pd.DataFrame(rows)

    @cached_property
    def _beyond_drift(self) -> tuple[Tensor, float]:
        forks = [[PartMove(*each) for each in fork] for fork in self.null["moves"]]
        return beyond_forks(part_moves(self.base, self.changed, self._comparable), forks)

    def _tokens(self) -> pd.DataFrame:
        """Return the tokens that occur often, with how far the prediction after them changed, the most certain first.

        `p_random` and `q_random` test whether it changed more than by random changes, and `p` and `q` whether it did so
        by more than after the remaining tokens.
        """
        tokens = self.rows.tokens[: self.first, :-1].flatten().long()
        names, group, counts = tokens.unique(return_inverse=True, return_counts=True)
        often = counts >= FEWEST
        if not self.null["kl"] or not often.any():
            return pd.DataFrame()
        kl = means_of(self.kl()[None, : len(tokens)], group)[0, often]
        null = means_of(self._moved_null("kl"), group)[:, often]
        log_kl, log_null = (means.clamp(min=ROUNDING).log() for means in (kl, null))
        p_random = above_null(log_kl, log_null)
        beyond, _, p = excess(log_kl, log_null)
        p = torch.where(beyond > 0, p / 2, 1 - p / 2)  # one-sided
        q_random, q = false_discovery_rates(p_random), false_discovery_rates(p)
        numbers = {"kl": kl, "null": null.mean(0), "p_random": p_random, "q_random": q_random}
        numbers |= {"factor": beyond.exp(), "p": p, "q": q}
        written = map(self._written, names[often].tolist())
        table = pd.DataFrame({"token": list(written), "count": counts[often], **_arrays(numbers)})
        return table.sort_values(["q", "p"], kind="stable", ignore_index=True)

    def _classes(self) -> pd.DataFrame:
        """Return KL after the tokens of each kind that `FEWEST_GROUPS` documents have, the greatest first."""
        tokens, documents, kl = self.rows.tokens[:, :-1].flatten().long(), self.documents(), self.kl()
        different, of = tokens.unique(return_inverse=True)
        kinds = np.array([kind_of_token(self.base.tokenizer, token) for token in different.tolist()])[of.numpy()]
        chosen = {kind: torch.from_numpy(kinds == kind) for kind in sorted(set(kinds.tolist()))}
        chosen = {kind: each for kind, each in chosen.items() if len(documents[each].unique()) >= FEWEST_GROUPS}
        rows: list[dict[str, Any]] = []
        for kind, each in chosen.items():
            own = documents[each].unique(return_inverse=True)[1]
            level = 1 - LEVEL / len(chosen)
            found = interval_columns("kl", mean_over_documents(kl[each], own, level, bounds=BOUNDS["kl"]))
            rows.append({"class": kind, "tokens": int(each.sum()), **found})
        rows.sort(key=lambda row: -row["kl"])
        return pd.DataFrame(rows)

    def _words(self) -> pd.DataFrame:
        """Return how far the contrast of each word changed, beside null and other words, the most certain first."""
        if self.contrasts is None:
            return pd.DataFrame()
        group, before = self.contrasts.groups, self.effects(self.base)
        change, counts = self.effects(self.changed) - before, torch.bincount(group)
        start, mean = means_of(torch.stack([before, change]), group)
        variance = means_of((change - mean[group]).square()[None], group)[0] / (counts - 1)  # of the mean
        t = torch.from_numpy(stdtrit(counts.clamp(min=2).numpy() - 1, 1 - LEVEL / 2 / len(counts)))
        half = torch.where(counts > 1, t * variance.sqrt(), math.inf)
        found = {"before": start, "change": mean, "change_low": mean - half, "change_high": mean + half}
        if self.null["effects"]:
            beyond, t, p = excess(mean, means_of(self._moved_null("effects") - before, group))
            found |= {"beyond": beyond, "t": t, "p": p, "q": false_discovery_rates(p)}
        words = list(dict.fromkeys(prompt.word for prompt in self.contrasts.texts))
        table = pd.DataFrame({"word": words, "pairs": counts, **_arrays(found)})
        return table.sort_values("p" if "p" in table else "change", kind="stable", ignore_index=True)

    def _contexts(self) -> pd.DataFrame:
        """Return the places where the prediction changed most, the greatest of each document."""
        kl, documents, width = self.kl(), self.documents(), self.rows.context - 1
        tops = torch.cat([each.tops for each in self.changes], 1)
        found: dict[int, dict[str, Any]] = {}
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

    def directions_at(self, batches: Sequence[BatchStates]) -> None:
        """Find the principal directions of the change of states after the block at which most of it enters."""
        inside = {part: float(each.entering.mean()) for part, each in self.parts.items() if each.entering is not None}
        if not inside:
            return
        layer = max(inside, key=lambda part: inside[part]).layer
        before, after = (torch.cat([states[layer + 1][:, :-1].flatten(0, 1) for states in side])
                         for side in zip(*((own.base, own.changed) for own in batches), strict=True))  # fmt: skip
        half = (self.documents(self.first) % 2 == 0).to(before.device)
        if not half.any() or half.all() or torch.equal(before, after):
            return
        found = directions_of_change(after - before, half)
        along = ((after - before).double() @ found.directions.T).square().mean(0).sqrt()
        for number, direction in enumerate(found.directions):
            raised, lowered = self._read(before, along[number] * direction)
            numbers = {"share": float(found.share[number]), "stability": float(found.stability[number])}
            words = {"raises": raised, "lowers": lowered}
            self._directions.append({"layer": layer, "direction": number + 1, **numbers, **words})

    @torch.no_grad()
    def _read(self, states: Float[Tensor, "n d"], step: Float[Tensor, " d"]) -> tuple[str, str]:
        """Return the tokens whose logits a step raises and lowers most, read by the final norm and unembedding."""
        chosen = states[:: max(len(states) // MEASURED, 1)]
        change = (self.base.finish(chosen + step.to(chosen)) - self.base.finish(chosen)).mean(0)
        raised, lowered = (change.topk(NAMED, largest=largest).indices.tolist() for largest in (True, False))
        return tuple(" ".join(map(self._written, each)) for each in (raised, lowered))  # type: ignore[return-value]

    def _written(self, token: int) -> str:
        return repr(self.base.tokenizer.decode([token]))


def unchanged(base: FrozenModel, margin: Mapping[str, float | None]) -> Outcome:
    """Return the outcome for two models with equal weights and settings, which need no text: nothing changed."""
    table = pd.DataFrame([{"component": part.component, "layer": part.layer, "weights": 0.0, "entering": 0.0,
                           "goes": 0.0, "comes": 0.0, "share": 0.0} for part in parts_of(base)])  # fmt: skip
    zeros = [f"{name}{end}" for name in ("kl", "flips", "loss_change") for end in ("", "_low", "_high")]
    given = [name for name, value in margin.items() if value is not None]
    names = [f"exit_status_{name}" for name in given] + ["exit_status"] * bool(given)
    return Outcome(table, dict.fromkeys(["parts", "settings", "tokens", *zeros, *names], 0.0))


def beside_runs(name: str, value: Float[Tensor, ""], runs: Float[Tensor, " r"]) -> dict[str, float]:
    """Return the range of the runs of a null, and the p-values of a value that is above or below them."""
    return {
        f"{name}_low": float(runs.min()),
        f"{name}_high": float(runs.max()),
        f"{name}_p": float(rank_p(value, runs)),
        f"{name}_p_less": float(rank_p(-value, -runs)),
    }


def means_of(values: Float[Tensor, "r n"], group: Int[Tensor, " n"]) -> Float[Tensor, "r g"]:
    """Return the mean of each group."""
    return sum_by_document(values, group, int(group.max()) + 1) / torch.bincount(group)


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the verdict of several tests together: not equivalent, else undecided, else equivalent."""
    return max(verdicts, key=["equivalent", "undecided", "not equivalent"].index)


def _arrays(columns: Mapping[str, Tensor]) -> dict[str, Any]:
    return {name: values.cpu().numpy() for name, values in columns.items()}


def _of_part(found: PartChanges, whole: Float[Tensor, " n"], documents: Int[Tensor, " n"]) -> dict[str, float]:
    """Return what enters at a part, and the shares of the whole KL that go, that come, and their mean.

    The mean is over the two orders in which this part and all others change (Shapley 1953, of two players).
    """
    row: dict[str, float] = {}
    if found.entering is not None:
        row = interval_columns("entering", mean_over_documents(found.entering, documents, bounds=BOUNDS["distance"]))
    if found.without is None or found.alone is None or not whole.sum():
        return row
    without, alone = found.without.double(), found.alone.double()
    count = int(documents.max()) + 1
    sums = sum_by_document(torch.stack([(whole - without + alone) / 2, whole]), documents, count)
    few = count < FEWEST_GROUPS or int((sums[1] > 0).sum()) < 2
    share = interval_around((sums[0].sum() / sums[1].sum()), math.inf) if few else bootstrap_interval(sums[0], sums[1])
    shares = {"goes": float(1 - without.sum() / whole.sum()), "comes": float(alone.sum() / whole.sum())}
    return row | shares | interval_columns("share", share)
