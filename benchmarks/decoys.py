"""Which measures tell trained models from decoys, which have learnt nothing of the text they read?

    python benchmarks/decoys.py                              six minis, about ten minutes of one thread
    python benchmarks/decoys.py --only gelu-3l-mini          one of them
    python benchmarks/decoys.py --table                      tables of what `--out` holds

    python benchmarks/decoys.py --targets ./smollm2 ./gemma3-270m --files docstrings.jsonl \\
        --filler-tokens 8 --out real.jsonl
    python benchmarks/decoys.py --targets ./smollm2 ./gemma3-270m --files docstrings.jsonl \\
        --only ./smollm2 --halves 10 --out halves.jsonl

A decoy makes states of the tokens so far by a rule that no training made, mostly from the embedding
of the target or of another model. It is compared with the target at up to five layers, and so are
trained models. Each value of the ruler is tested against local mixing as `measure=ruler` tests a
pair of models. All other measures are of the raw states of the same words, 1,000 of them. The
controls of the ruler, in `thinkalike.states.mixing`, have other random weights than the decoys.

Rows are held-out text: the corpus that a mini was trained on, or `--files`. `--halves` compares a
pair of models in random halves of the documents. Finished comparisons stay in `--out`, so that the
same command resumes.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import compose_job
from thinkalike.data.splits import training_texts
from thinkalike.instruments.ruler.calibration_points import difference_interval, greatest_at_each_pair
from thinkalike.instruments.ruler.words import Words, r2_of_layers
from thinkalike.measures import CKAMeasure, MutualKNN
from thinkalike.measures.contract import AnyMeasure, LayerMeasure, ModelPairs, joint_matrix
from thinkalike.measures.folds import numbered_by_part
from thinkalike.measures.massive_rows import massive
from thinkalike.measures.residual import ResidualStates
from thinkalike.measures.ridge import Predictor
from thinkalike.measures.row_groups import RowGroups
from thinkalike.measures.seeds import seeded
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.layer_choice import layers_at_depths
from thinkalike.models.load import load_model
from thinkalike.models.variants import untrained_with_embedding
from thinkalike.registry import OF_STATES, layer_measures
from thinkalike.states.mixing import BAGS, CONTROLS, POSITION, TokenMixing, bag

DEPTHS = 5  # layers of each model, at equal relative depth
SAMPLE = 1000  # rows of the measures that compare all pairs of rows
GIVEN = 12  # rows of a word in a measure given the word: ten neighbours, the row, and one more
SEED = 7919  # of the random weights of decoys; the ruler's controls have 0 and 1
UNTRAINED_SEED = 104729
COUNTED_TOKENS = 400_000  # of the training text, of which the n-gram model is made
ROWS_AT_ONCE = 256  # of filler tokens
PREDICTED = 512  # most frequent tokens whose log-probabilities the n-gram model gives
STDLIB = (
    *("gelu-3l-mini", "gelu-3l-mini-s1", "gelu-4l-mini", "solu-3l-mini"),
    *("solu-4l-mini", "neox-5l-mini", "neox-6l-mini"),
)
GRAMMAR = ("gpt2-mini", "gpt2-mini-s1", "bert-mini", "bert-mini-s1", "mamba-mini", "mamba-mini-s1")
MINIS = ("gelu-3l-mini", "solu-4l-mini", "neox-5l-mini", "gpt2-mini", "bert-mini", "mamba-mini")

States = list[Float[Tensor, "n _"]]


# ---- decoys


class TokenDecoys(TokenMixing):
    """Decoys that are computed from the tokens read so far, or from their embeddings.

    Args:
        model: The model whose tokenizer and embedding they have.
        log_probabilities: Gives those of the next token, (t, PREDICTED), for a row; for n-grams.
    """

    def __init__(self, model: FrozenModel, log_probabilities: Callable[[Tensor], Tensor] | None):
        super().__init__(model)
        self._log_probabilities = log_probabilities

    def residuals(
        self, tokens: Int[Tensor, "b t"], layers: Sequence[Any], mask: Tensor | None = None
    ) -> list[Float[Tensor, "b t _"]]:
        """Return the states of these decoys; `mask` is ignored, as padding follows the row."""
        _, size = self._centre_and_size
        embedded = self._embedded(tokens) / size
        return [OF_TOKENS[layer](self, tokens, embedded) for layer in layers]

    def running_mean(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        return bag(rows, None)

    def decaying_bag(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        return bag(rows, 0.5)

    def recurrent(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        return reservoir(rows, radius=0.2, leak=1.0)

    def echo_state(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        return reservoir(rows, radius=0.9, leak=0.3)

    def last_four(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        return sum(earlier(rows, back) @ random_map(rows.shape[-1], SEED + back) for back in range(4))

    def bilinear(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        of_token = rows @ random_map(rows.shape[-1], SEED + 10)
        of_previous = earlier(rows, 1) @ random_map(rows.shape[-1], SEED + 11)
        return of_token * of_previous

    def n_grams(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        assert self._log_probabilities is not None
        return torch.stack([self._log_probabilities(row) for row in tokens])

    def trigram_hash(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        """Return the sum of random codes of the last token, the last two and the last three."""
        previous, last_but_one = (
            earlier(tokens[..., None], 1)[..., 0],
            earlier(tokens[..., None], 2)[..., 0],
        )
        code = tokens * 1_000_003 + SEED
        total = hashed(code, self.d_model)
        for token in (previous, last_but_one):
            code = (code * 1_000_003 + token + 1) % (2**61 - 1)
            total = total + hashed(code, self.d_model)
        return total

    def local_attention(self, tokens: Tensor, rows: Float[Tensor, "b t d"]) -> Tensor:
        """Return an untrained transformer block whose four heads attend to nearby tokens."""
        width = rows.shape[-1]
        queries, keys, values, inward, outward = (random_map(width, SEED + 20 + number) for number in range(5))
        distance = torch.arange(rows.shape[1])[:, None] - torch.arange(rows.shape[1])
        normed = torch.nn.functional.layer_norm(rows, (width,))
        state = rows * width**0.5
        mixed = []
        of_heads = [part.split(math.ceil(width / 4), 1) for part in (queries, keys, values)]
        for query, key, value, slope in zip(*of_heads, (0.3, 0.7, 1.5, 3.0), strict=True):
            scores = (normed @ query) @ (normed @ key).mT / query.shape[1] ** 0.5
            scores = (2 * scores - slope * distance).masked_fill(distance < 0, -math.inf)
            mixed.append(scores.softmax(-1) @ (normed @ value))
        state = state + torch.cat(mixed, -1)
        hidden = torch.nn.functional.layer_norm(state, (width,)) @ inward
        return state + torch.nn.functional.gelu(2 * hidden) @ outward


N_GRAMS = "n-gram log-probabilities"
OF_TOKENS: Mapping[str, Callable[[TokenDecoys, Tensor, Tensor], Tensor]] = {
    "mean of embeddings": TokenDecoys.running_mean,
    "bag decaying by .5": TokenDecoys.decaying_bag,
    "random RNN, radius .2": TokenDecoys.recurrent,
    "last four embeddings": TokenDecoys.last_four,
    "product of two tokens": TokenDecoys.bilinear,
    N_GRAMS: TokenDecoys.n_grams,
    "untrained local attention": TokenDecoys.local_attention,
    "hash of trigrams": TokenDecoys.trigram_hash,
    "leaky echo state, radius .9": TokenDecoys.echo_state,
}
UNTRAINED, FILLER, PLACE = "untrained twin", "filler words", "mean of the position"


def random_map(width: int, seed: int) -> Float[Tensor, "d d"]:
    return torch.randn(width, width, generator=seeded(seed)) / width**0.5


def earlier(rows: Tensor, back: int) -> Tensor:
    """Return (b, t, d) moved so many tokens back, and 0 before the first."""
    return torch.nn.functional.pad(rows, (0, 0, back, 0))[:, : rows.shape[1]]


def reservoir(rows: Float[Tensor, "b t d"], radius: float, leak: float) -> Float[Tensor, "b t d"]:
    """Return h_t = (1 - leak) h_(t-1) + leak tanh(W h_(t-1) + U e_t + b), with random weights."""
    width = rows.shape[-1]
    inputs = rows @ random_map(width, SEED + 30) * width**0.5 + torch.randn(width, generator=seeded(SEED + 31))
    onward = random_map(width, SEED + 32) * radius
    state = torch.zeros_like(inputs[:, 0])
    states = []
    for step in inputs.unbind(1):
        state = (1 - leak) * state + leak * (state @ onward + step).tanh()
        states.append(state)
    return torch.stack(states, 1)


def hashed(codes: Int[Tensor, "b t"], width: int) -> Float[Tensor, "b t d"]:
    """Return a normal code for each number, the same for equal numbers."""
    numbers, inverse = codes.unique(return_inverse=True)
    rows = [torch.randn(width, generator=seeded(int(number) % 2**31)) for number in numbers]
    return torch.stack(rows)[inverse]


class FillerRows:
    """A model that reads the current token in its place, and one filler token in all others.

    Each token in each place is a row, so places from `longest` on are read as the last one.
    """

    def __init__(self, model: FrozenModel, filler: int, longest: int):
        self.name, self.tokenizer, self.context = model.name, model.tokenizer, model.context
        self.bos_each_row, self.device, self.module = (
            model.bos_each_row,
            torch.device("cpu"),
            model.module,
        )
        self.identity = id(self)  # no other reader gives these states
        self._model, self._filler, self._longest = model, filler, longest
        self._known: dict[tuple[int, int], list[Tensor]] = {}

    def encoded(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the token ids of one text, and the characters of each, as the model does."""
        return self._model.encoded(text)

    def residuals(
        self, tokens: Int[Tensor, "b t"], layers: Sequence[Any], mask: Tensor | None = None
    ) -> list[Float[Tensor, "b t d"]]:
        places = torch.arange(tokens.shape[1]).clamp(max=self._longest - 1).expand_as(tokens)
        keys = [*zip(tokens.flatten().tolist(), places.flatten().tolist(), strict=True)]
        unknown = [key for key in dict.fromkeys(keys) if key not in self._known]
        for start in range(0, len(unknown), ROWS_AT_ONCE):
            self._read(unknown[start : start + ROWS_AT_ONCE], int(tokens[0, 0]), layers)
        width = self._known[keys[0]][0].shape[0]
        return [
            torch.stack([self._known[key][number] for key in keys]).view(*tokens.shape, width)
            for number in range(len(layers))
        ]

    def _read(self, keys: Sequence[tuple[int, int]], first_token: int, layers: Sequence[Any]) -> None:
        rows = torch.full((len(keys), self._longest), self._filler)
        if self.bos_each_row:
            rows[:, 0] = first_token
        for row, (token, place) in zip(rows, keys, strict=True):
            row[place] = token
        numbers = torch.arange(len(keys))
        places = torch.tensor([place for _, place in keys])
        states = [layer[numbers, places].float().cpu() for layer in self._model.residuals(rows, layers)]
        for number, key in enumerate(keys):
            self._known[key] = [layer[number].clone() for layer in states]


def n_gram_model(model: FrozenModel, texts: Iterable[str]) -> Callable[[Tensor], Tensor]:
    """Return a function that gives log-probabilities of what follows each token of a row.

    They mix counts after two tokens, after one, and of single tokens, in other text.
    """
    numbers: list[int] = []
    for text in texts:
        numbers += model.tokenizer(text, verbose=False)["input_ids"]
        if len(numbers) > COUNTED_TOKENS:
            break
    tokens = torch.tensor(numbers)
    frequent = torch.bincount(tokens, minlength=model.vocabulary).topk(min(PREDICTED, model.vocabulary)).indices
    column = torch.full((model.vocabulary,), -1)
    column[frequent] = torch.arange(len(frequent))
    following = column[tokens[2:]]
    counted = following >= 0
    base = 2 * model.vocabulary
    contexts = [
        torch.zeros_like(tokens[1:-1]),
        tokens[1:-1],
        (tokens[:-2] + 1) * base + tokens[1:-1],
    ]
    tables = []
    for codes in contexts:
        code, inverse = codes[counted].unique(return_inverse=True)
        pairs, times = (inverse * len(frequent) + following[counted]).unique(return_counts=True)
        entries = torch.stack([pairs // len(frequent), pairs % len(frequent)])
        shape = (len(code), len(frequent))
        table = torch.sparse_coo_tensor(entries, times.float(), shape, check_invariants=True)
        tables.append((code, table.coalesce()))

    def log_probabilities(row: Int[Tensor, " t"]) -> Float[Tensor, "t k"]:
        before = torch.nn.functional.pad(row, (1, 0), value=-1)[:-1]
        codes = [torch.zeros_like(row), row, (before + 1) * base + row]
        mixture = torch.full((len(row), len(frequent)), 1e-5)
        for (code, table), wanted, weight in zip(tables, codes, (0.1, 0.3, 0.6), strict=True):
            place = torch.searchsorted(code, wanted).clamp(max=len(code) - 1)
            counts = table.index_select(0, place).to_dense() * (code[place] == wanted)[:, None]
            mixture += weight * counts / counts.sum(1, keepdim=True).clamp(min=1)
        return mixture.log()

    return log_probabilities


def position_means(states: States, position: Int[Tensor, " n"]) -> States:
    """Return for each row the mean state of its position."""
    _, number = position.unique(return_inverse=True)
    means = []
    for layer in states:
        total = torch.zeros(int(number.max()) + 1, layer.shape[1]).index_add_(0, number, layer.float())
        means.append((total / number.bincount()[:, None])[number])
    return means


# ---- what is compared


@dataclass
class Side:
    """The states of a model or decoy, by layer pair, and the model whose embedding it has."""

    states: States
    embedding: str


class Text:
    """The words that all models and decoys read, and what is computed once for each model."""

    def __init__(self, words: Words, models: Mapping[str, FrozenModel]):
        self.words, self.models = words, models
        self._mixing: dict[str, dict[str, Tensor]] = {}
        self._states: dict[tuple[str, int], Tensor] = {}
        self._made: dict[Any, States] = {}

    def mixing(self, name: str) -> dict[str, Tensor]:
        """Return the ruler's bags, controls and positions, of the embedding of a model."""
        if name not in self._mixing:
            reader = TokenMixing(self.models[name])
            layers = [POSITION, *BAGS, *CONTROLS]
            self._mixing[name] = dict(zip(layers, self.words.states(reader, layers), strict=True))
        return self._mixing[name]

    def states(self, name: str, layers: Sequence[int]) -> States:
        missing = [layer for layer in dict.fromkeys(layers) if (name, layer) not in self._states]
        if missing:
            read = self.words.states(self.models[name], missing)
            self._states |= {(name, layer): states for layer, states in zip(missing, read, strict=True)}
        return [self._states[name, layer] for layer in layers]

    def once(self, key: Any, make: Callable[[], States]) -> States:
        """Return what a call makes, which is kept, as decoys serve several targets."""
        if key not in self._made:
            self._made[key] = make()
        return self._made[key]


class RulerBesideTarget:
    """Compares sources with a target as `measure=ruler` does; keeps what is of the target.

    Args:
        documents: Those of which rows are compared; None: all.
    """

    def __init__(self, text: Text, target: Side, documents: Tensor | None = None):
        self.text, self.target = text, target
        owners = text.words.text.owners
        self.chosen = torch.arange(len(owners)) if documents is None else torch.isin(owners, documents).nonzero()[:, 0]
        self.documents = numbered_by_part(owners[self.chosen])
        self._known: dict[Any, Any] = {}

    def rows(self, layer: Tensor) -> Tensor:
        return layer[self.chosen]

    def left_out(self, source: Side) -> Bool[Tensor, " n"]:
        layers = {id(layer): layer for layer in (*source.states, *self.target.states)}
        outliers = massive([self.rows(layer) for layer in layers.values()])
        return torch.zeros(len(self.chosen), dtype=torch.bool) if outliers is None else outliers

    def compare(self, source: Side, is_complete: bool = True) -> list[dict[str, float]]:
        """Return of each layer pair R², what local mixing shares, and the difference.

        If it `is_complete`, so is R² of states that lost only the means of word and position.
        """
        is_massive = self.left_out(source)
        embeddings = [*dict.fromkeys([source.embedding, self.target.embedding])]
        key = (*embeddings, is_massive.numpy().tobytes())
        if key not in self._known:
            self._known = {key: self._prepared(embeddings, is_massive)}  # the last one, as they are large
        residual, word_alone, targets, targets_alone, controls, of_target = self._known[key]
        sources = once_for_each(source.states, partial(self._predictor, residual))
        value = r2_of_layers(sources, targets)
        of_source = [alike_with_one(sources, control) for control in controls[source.embedding]]
        source_mixing = greatest_at_each_pair(of_source)
        target_mixing = greatest_at_each_pair(of_target)
        mixing = {
            "": greatest_at_each_pair([source_mixing, target_mixing]),
            " target": target_mixing,
            " least": least([source_mixing, target_mixing]),
        }
        pairs: list[dict[str, float]] = [{"words": float(len(residual.rows))} for _ in value]
        for layer, pair in enumerate(pairs):
            pair["r2"] = float(value[layer, :, 0].mean())
        if is_complete:
            plain = once_for_each(source.states, partial(self._predictor, word_alone))
            if not targets_alone:
                targets_alone += once_for_each(self.target.states, partial(self._predictor, word_alone))
            for pair, of_pair in zip(pairs, r2_of_layers(plain, targets_alone), strict=True):
                pair["r2 beyond word and position"] = float(of_pair[:, 0].mean())
        for name, shared in mixing.items():
            beyond = difference_interval((value - shared).mean(1))
            for layer, pair in enumerate(pairs):
                pair[f"mixing{name}"] = float(shared[layer, :, 0].mean())
                pair[f"beyond{name}"] = float(beyond.value[layer])
                pair[f"beyond{name} low"] = float(beyond.low[layer])
        return pairs

    def _prepared(self, embeddings: Sequence[str], is_massive: Tensor) -> tuple[Any, ...]:
        words = self.text.words
        mixings = {name: self.text.mixing(name) for name in embeddings}
        forms = words.forms[self.chosen]
        positions = [self.rows(mixing[POSITION])[:, 0].long() for mixing in mixings.values()]
        bags = [self.rows(mixing[name]) for mixing in mixings.values() for name in BAGS]
        residual = ResidualStates(forms, self.documents, positions, bags, ~is_massive)
        word_alone = ResidualStates(forms, self.documents, positions[:1], (), ~is_massive)
        targets = once_for_each(self.target.states, partial(self._predictor, residual))
        targets_alone: list[Predictor] = []  # filled where they are asked for
        controls = {
            name: [self._predictor(residual, mixing[control]) for control in CONTROLS]
            for name, mixing in mixings.items()
        }
        of_target = [alike_with_one(targets, control) for control in controls[self.target.embedding]]
        return residual, word_alone, targets, targets_alone, controls, of_target

    def _predictor(self, residual: ResidualStates, layer: Tensor) -> Predictor:
        return Predictor(residual.of(self.rows(layer)), residual.documents)


def least(values: Sequence[Float[Tensor, "l 2 r"]]) -> Float[Tensor, "l 2 r"]:
    """Return at each layer the smallest of several values, by the mean of both ways."""
    return -greatest_at_each_pair([-value for value in values])


def once_for_each(layers: States, call: Callable[[Tensor], Any]) -> list[Any]:
    """Return what a call makes of each layer; layers that are one tensor are computed once."""
    made = {number: call(layer) for number, layer in {id(layer): layer for layer in layers}.items()}
    return [made[id(layer)] for layer in layers]


def alike_with_one(predictors: Sequence[Predictor], control: Predictor) -> Tensor:
    """Return what each layer shares with one control; the same layer is compared once."""
    different = list(dict.fromkeys(predictors))
    values = dict(zip(different, r2_of_layers(different, [control] * len(different)), strict=True))
    return torch.stack([values[predictor] for predictor in predictors])


def other_measures(groups: RowGroups) -> dict[str, LayerMeasure]:
    """Return every measure of the package that compares the states of two layers, by its name."""
    measures: dict[str, AnyMeasure] = {"cka": CKAMeasure()}
    for entry in layer_measures(OF_STATES):
        measures[entry.kind] = entry.load()()
    measures["cka given the word"] = CKAMeasure(groups=groups)
    measures["mutual_knn given the word"] = MutualKNN(groups=groups)
    return measures


def measured_rows(ruler: RulerBesideTarget, sides: Sequence[Side]) -> Int[Tensor, " n"]:
    """Return rows for the other measures, of words that the ruler compares with all sides."""
    is_massive = torch.stack([ruler.left_out(side) for side in sides]).any(0)
    no_position = torch.zeros_like(ruler.documents)
    residual = ResidualStates(ruler.text.words.forms, ruler.documents, [no_position], (), ~is_massive)
    order = torch.randperm(len(residual.rows), generator=seeded(0))
    return residual.rows[order[:SAMPLE]]


class OtherMeasures:
    """Compares sources with one target by every other measure, on raw states of the same rows.

    Layers of the target are prepared once, and so is a decoy that is the same at all layers.
    """

    def __init__(self, target: Side, rows: Int[Tensor, " n"], forms: Int[Tensor, " n"]):
        self.rows = rows
        self.measures = other_measures(RowGroups.of(forms[rows], GIVEN))
        self.prepared = {name: self._prepare(measure, target) for name, measure in self.measures.items()}

    def _prepare(self, measure: LayerMeasure, side: Side) -> list[Any]:
        def prepare(layer: Tensor) -> Any:
            try:
                return measure.prepared([layer[self.rows].float()], ["a layer"])[0]
            except ValueError:  # the layer is constant, at least for rows of one word
                return None

        return once_for_each(side.states, prepare)

    def compare(self, source: Side) -> list[dict[str, float]]:
        """Return all measures of each layer pair; distances are given as their negatives."""
        values: list[dict[str, float]] = [{} for _ in source.states]
        for name, measure in self.measures.items():
            sides = zip(self._prepare(measure, source), self.prepared[name], strict=True)
            for pair, (ours, target) in zip(values, sides, strict=True):
                pair[name] = math.nan if ours is None else likeness(measure, ours, target)
        return values


def likeness(measure: LayerMeasure, source: Any, target: Any) -> float:
    """Return a measure of two prepared layers, of which more is closer."""
    with_themselves = [(0, 0), (0, 1), (1, 1)] if measure.is_ratio else [(0, 1)]
    values = measure.compare_all([source, target], ModelPairs([[0], [1]], with_themselves))
    value = measure.ratios(joint_matrix(values, (0, 1)))[0, 1] if measure.is_ratio else values[0, 1][0, 0]
    return float(value) if measure.higher_is_closer else -float(value)


# ---- which sources


@dataclass
class Source:
    """What is compared with a target, and how its states are made."""

    name: str
    embedding: str
    is_trained: bool
    states: Callable[[], States]


def sources_of(
    text: Text,
    target: str,
    others: Sequence[str],
    embeddings: Sequence[str],
    longest: int,
    counted: Any,
) -> Iterator[Source]:
    """Yield trained sources and then decoys, beside the layers of the target that are compared.

    Args:
        embeddings: The models whose embeddings decoys have.
        longest: The number of places in a row of filler tokens.
        counted: The text that n-grams are counted of.
    """
    for name in others:
        layers = layers_of(text, name, target)
        yield Source(name, name, True, partial(text.states, name, layers))
    for name in embeddings:
        model, layers = text.models[name], layers_of(text, name, target)

        def of_tokens(kind: str, model: FrozenModel = model, count: int = len(layers)) -> States:
            is_counted = kind == N_GRAMS
            log_probabilities = n_gram_model(model, training_texts(counted)) if is_counted else None
            (states,) = text.words.states(TokenDecoys(model, log_probabilities), [kind])
            return [states] * count

        def untrained(model: FrozenModel = model, layers: Sequence[int] = layers) -> States:
            return text.words.states(untrained_with_embedding(model, UNTRAINED_SEED), layers)

        def filler(model: FrozenModel = model, layers: Sequence[int] = layers) -> States:
            rows = FillerRows(model, filler_of(model), min(longest, model.context))
            return text.words.states(rows, layers)

        def position(name: str = name, layers: Sequence[int] = layers) -> States:
            return position_means(text.states(name, layers), text.mixing(name)[POSITION][:, 0].long())

        decoys: dict[str, Callable[[], States]] = {kind: partial(of_tokens, kind) for kind in OF_TOKENS}
        decoys |= {UNTRAINED: untrained, FILLER: filler, PLACE: position}
        for kind, make in decoys.items():
            yield Source(kind, name, False, partial(text.once, (kind, name, *layers), make))


def layers_of(text: Text, source: str, target: str) -> list[int]:
    """Return the layers of a source at the relative depths of those of the target."""
    depth, of_target = text.models[source].n_layers, text.models[target].n_layers
    layers = [layer for _, layer in layers_at_depths(DEPTHS, of_target, of_target)]
    return [round(layer * (depth - 1) / (of_target - 1)) for layer in layers]


def filler_of(model: FrozenModel) -> int:
    return int(model.tokenizer(" the", add_special_tokens=False)["input_ids"][-1])


def job_of(target: str, files: Path | None) -> Any:
    words = ["measure=ruler", f"model={target}"]
    if files:
        words += ["data=text", f"data.files=[{files}]", "data.evaluation_share=0.7"]
    return compose_job("analyze", words)


def counted_text(target: str, files: Path | None) -> Any:
    """Return the text that n-grams are counted in: Python's manual beside `--files`."""
    if files:
        return compose_job("analyze", ["measure=ruler", "data=pydoc"]).data
    return job_of(target, files).data


class Records:
    """Comparisons in a file, one a line, so that a second run does only what is missing."""

    def __init__(self, path: Path):
        self.path = path
        lines = path.read_text().splitlines() if path.exists() else []
        self.records = [json.loads(line) for line in lines]

    def has(self, key: Mapping[str, Any]) -> bool:
        return any(record["key"] == key for record in self.records)

    def add(self, key: Mapping[str, Any], layers: Any) -> None:
        self.records.append({"key": key, "layers": layers})
        with self.path.open("a") as file:
            print(json.dumps(self.records[-1]), file=file, flush=True)


def others_of(target: str, targets: Sequence[str]) -> list[str]:
    """Return the trained sources: minis of the same text, or the other targets."""
    family = next((names for names in (STDLIB, GRAMMAR) if target in names), targets)
    return [name for name in family if name != target]


def text_of(target: str, options: argparse.Namespace, known: dict[Any, Text]) -> Text:
    """Return the words that a target and its sources read; the same models have one text."""
    names = sorted([target, *others_of(target, options.targets)])
    if tuple(names) not in known:
        models = {name: load_model(name) for name in names}
        data = job_of(target, options.files).data
        known[tuple(names)] = Text(Words(data, list(models.values()), options.words), models)
    return known[tuple(names)]


def compare_all(target: str, text: Text, options: argparse.Namespace, records: Records) -> None:
    """Compare one target with all trained sources and decoys."""
    others = others_of(target, options.targets)
    layers = layers_of(text, target, target)
    side = Side(text.states(target, layers), target)
    ruler = RulerBesideTarget(text, side)
    families = [name for name in others if name.split("-")[0] != target.split("-")[0]]
    embeddings = {"target": target, "other": (families or others)[-1]}
    embeddings = [embeddings[which] for which in options.embeddings]
    trained = [Side(text.states(name, layers_of(text, name, target)), name) for name in others]
    rows = measured_rows(ruler, trained)
    others_of_rows = OtherMeasures(side, rows, text.words.forms)
    counted = counted_text(target, options.files)
    for source in sources_of(text, target, others, embeddings, options.filler_tokens, counted):
        key = {
            "target": Path(target).name,
            "source": Path(source.name).name if source.is_trained else source.name,
            "embedding": Path(source.embedding).name,
            "trained": source.is_trained,
            "words": options.words,
        }
        if records.has(key):
            continue
        began = time.perf_counter()
        beside = Side(source.states(), source.embedding)
        of_ruler = ruler.compare(beside)
        of_others = others_of_rows.compare(beside)
        parts = zip(layers, of_ruler, of_others, strict=True)
        records.add(key, [{"layer": layer, **values, **more} for layer, values, more in parts])
        shown = " ".join(f"{pair['r2']:.3f}/{pair['mixing']:.3f}" for pair in of_ruler)
        seconds = time.perf_counter() - began
        print(
            f"{key['target']} beside {key['source']} ({key['embedding']}): {shown}, {seconds:.0f} s",
            flush=True,
        )


def compare_halves(target: str, text: Text, options: argparse.Namespace, records: Records) -> None:
    """Compare two models, without their first and last layers, in halves of the documents."""
    (other,) = others_of(target, options.targets)
    layers = layers_of(text, target, target)[1:-1]
    side = Side(text.states(target, layers), target)
    source = Side(text.states(other, layers_of(text, other, target)[1:-1]), other)
    numbers = text.words.text.owners.unique()
    for half in range(2):
        for split in range(options.halves):
            order = numbers[torch.randperm(len(numbers), generator=seeded(split))]
            documents = order.tensor_split(2)[half]
            key = {
                "target": Path(target).name,
                "split": split,
                "half": half,
                "words": options.words,
            }
            if records.has(key):
                continue
            values = RulerBesideTarget(text, side, documents).compare(source, is_complete=False)
            records.add(
                key,
                [{"layer": layer, **value} for layer, value in zip(layers, values, strict=True)],
            )
            shown = " ".join(f"{pair['r2']:.3f} beyond {pair['beyond low']:.3f}" for pair in values)
            print(f"split {split}, half {half}, {values[0]['words']:.0f} words: {shown}", flush=True)


# ---- tables


def table_of(records: Records) -> pd.DataFrame:
    rows = [{**record["key"], **layer} for record in records.records for layer in record["layers"]]
    return pd.DataFrame(rows)


def auc(trained: Sequence[float], decoys: Sequence[float]) -> float:
    """Return the share of pairs in which the trained source has more; ties count half."""
    pairs = [(a > b) + (a == b) / 2 for a in trained for b in decoys]
    return statistics.mean(pairs) if pairs else math.nan


TESTS = {
    "": "either model",
    " target": "the target",
    " least": "the model that it shares less with",
}
TITLES = {
    "r2": "R² beyond word, position and mixing",
    "beyond": "R² beyond, less what mixing shares with either model",
    "beyond target": "R² beyond, less what mixing shares with the target",
    "beyond least": "R² beyond, less the smaller of the two",
}


def print_tables(table: pd.DataFrame) -> None:
    for name in TESTS:
        table[f"more{name}"] = table[f"beyond{name} low"] > 0
    reads_both_ways = [table[side].str.startswith("bert") for side in ("source", "target")]
    is_crossed = table["trained"] & (reads_both_ways[0] != reads_both_ways[1])
    crossed, table = table[is_crossed], table[~is_crossed]
    if len(crossed):
        print(
            f"{crossed['more'].sum()} of {len(crossed)} pairs of BERT and a causal model share more, by the ruler; "
            "these pairs are left out below.\n"
        )
    print("By what local mixing shares with", "; ".join(TESTS.values()), "\n")
    print("| target | trained pairs that share more, % | decoys that share no more, % |")
    print("|---|---|---|")
    for target, rows in [*table.groupby("target", sort=False), ("all", table)]:
        trained, decoys = rows[rows["trained"]], rows[~rows["trained"]]
        more = [f"{100 * trained[f'more{name}'].mean():.0f}" for name in TESTS]
        no_more = [f"{100 * (1 - decoys[f'more{name}'].mean()):.1f}" for name in TESTS]
        print(f"| {target} | {', '.join(more)} of {len(trained)} | {', '.join(no_more)} of {len(decoys)} |")
    decoys = table[~table["trained"]]
    print("\n| decoy | no more, % | R², median and largest | largest excess |")
    print("|---|---|---|---|")
    for source, rows in decoys.groupby("source", sort=False):
        no_more = [f"{100 * (1 - rows[f'more{name}'].mean()):.1f}" for name in TESTS]
        largest = [f"{rows[f'beyond{name}'].max():+.3f}" for name in TESTS]
        print(f"| {source} | {', '.join(no_more)} of {len(rows)} | {rows['r2'].median():.2f}, {rows['r2'].max():.2f} "
              f"| {', '.join(largest)} |")  # fmt: skip
    print_auc(table)


def print_auc(table: pd.DataFrame) -> None:
    """Print for each measure the mean AUC over the layers of each target."""
    facts = {"target", "source", "embedding", "trained", "words", "layer"}
    is_value = [not name.startswith(("mixing", "more")) and not name.endswith(" low") for name in table]
    names = [name for name in table.columns[is_value] if name not in facts]
    targets = list(dict.fromkeys(table["target"]))
    headings = [*targets, "mean", "first layers", "later layers"]
    print("\n| measure |", " | ".join(headings), "|")
    print("|---|", "---|" * len(headings), sep="")
    for name in names:
        values = [auc_by_layer(table[table["target"] == target], name) for target in targets]
        means = [statistics.mean(of_target) for of_target in values]
        first = statistics.mean(of_target[0] for of_target in values)
        later = statistics.mean(statistics.mean(of_target[1:]) for of_target in values)
        cells = [f"{value:.2f}" for value in (*means, statistics.mean(means), first, later)]
        print("|", TITLES.get(name, name), "|", " | ".join(cells), "|")


def auc_by_layer(table: pd.DataFrame, measure: str) -> list[float]:
    """Return the AUC at each layer of a target; what cannot be compared counts as the least."""
    values = []
    for _, rows in table.groupby("layer"):
        known = rows[measure].fillna(-math.inf)
        values.append(auc(known[rows["trained"]].tolist(), known[~rows["trained"]].tolist()))
    return values


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--targets", nargs="+", default=list(MINIS))
    parser.add_argument("--files", type=Path, help="text in place of the corpus of the minis")
    parser.add_argument("--words", type=int, default=8192)
    parser.add_argument("--filler-tokens", type=int, default=32, help="places of rows of one filler token")
    parser.add_argument("--halves", type=int, default=0, help="splits of the documents of a pair in halves")
    parser.add_argument("--only", nargs="+", help="of the targets, those that are compared by this call")
    parser.add_argument("--embeddings", nargs="+", choices=["target", "other"], default=["target", "other"])
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--out", type=Path, default=Path("decoys.jsonl"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    records = Records(options.out)
    texts: dict[Any, Text] = {}
    if not options.table:
        compare = compare_halves if options.halves else compare_all
        for target in options.only or options.targets:
            compare(target, text_of(target, options, texts), options, records)
    if not options.halves:
        print_tables(table_of(records))


if __name__ == "__main__":
    main()
