"""measure=population: identity stitches and CKA of all pairs of classifiers (Brown et al. 2023, section 4)."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor

from thinkalike.config import AnalyzeConfig, MeasureConfig, ranged
from thinkalike.config.ranges import TOKENS_AT_ONCE
from thinkalike.data import MNLI, EncodedPairs, Pairs, batches, encode, read_pairs
from thinkalike.errors import ConfigError, DataError, ModelError, one_of
from thinkalike.evaluation import ClassLosses, check_labels, identity_stitches
from thinkalike.instruments.members import Member, halves, members_of
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.measures import grouped, population_penalties
from thinkalike.models import FrozenModel, load_model, same_vocabulary
from thinkalike.states import pair_batches
from thinkalike.store import Result

log = logging.getLogger(__name__)

STITCH_BATCH, CHECKED = 64, 300


@dataclass
class Config(MeasureConfig):
    """The settings of the comparison of a population."""

    kind: str = "population"
    side: str = "report"  # of the pairs: report | challenge
    site: str = "resid_post"  # of CKA: resid_post | update, what a block adds last, as brown2023 had it
    include_padding: bool = False  # in CKA, as brown2023 did
    tokens_per_batch: int = ranged(1024, least=1, most=TOKENS_AT_ONCE)  # of CKA
    at_once: int = ranged(4, least=1, most=10**5)  # sources that run through a target's blocks together

    def __post_init__(self) -> None:
        super().__post_init__()
        one_of("measure.side", self.side, ("report", "challenge"))
        one_of("measure.site", self.site, ("resid_post", "update"))


class Population(Instrument, kind="population", reads=("measure", "pairs", "population", "seed")):
    """Stitches every two members at every cut, and compares every two by layer, on the pairs of `measure.side`.

    Leaves accuracies and penalties of all stitches in table.csv, CKA in cka.csv, and both by example or batch in
    arrays.npz.
    """

    def inputs(self, config: AnalyzeConfig) -> Mapping[str, Any]:
        side = config.measure.side  # type: ignore[attr-defined]
        pairs = read_pairs(config.pairs, side)
        pairs = halves(config, pairs)[1] if side == "challenge" else pairs
        members = members_of(config)
        if twice := [name for name, count in Counter(each.name for each in members).items() if count > 1]:
            raise ConfigError(f"population={config.population.name} names {twice[0]} twice")
        return {"pairs": pairs} | {each.name: each for each in members}

    def run(self, config: AnalyzeConfig, work: Work) -> Outcome:
        measure: Any = config.measure
        pairs: Pairs = work.inputs["pairs"]
        members = [each for each in work.inputs.values() if isinstance(each, Member)]
        models = _load(members, config, pairs)
        encoded = _encode(pairs, models, config)
        stitched = _stitched(models, encoded, pairs, measure.at_once)
        likeness, hsics = _likeness(models, encoded, measure)
        table = _table(members, models[0].n_layers, stitched)
        own = table[table["source"] == table["target"]].groupby("group_of_source")["accuracy"].mean()
        fingerprint = {name: each.fingerprint() for name, each in work.inputs.items()}
        facts = {"source": pairs.source, "count": len(pairs), "truncated": encoded.truncated, **fingerprint}
        arrays = {"losses": stitched.losses.float(), "correct": stitched.correct, "cka": likeness, "hsics": hsics}
        return Outcome(
            table,
            {f"accuracy_{group}": float(own[group]) for group in dict.fromkeys(each.group for each in members)},
            {name: values.numpy() for name, values in arrays.items()},
            {"cka": _cells(members, likeness)},
            models=[model.describe() for model in models],
            facts={"pairs": facts},
        )

    def show(self, result: Result) -> None:
        groups = list(result.table.drop_duplicates("source")["group_of_source"])
        accuracy = torch.from_numpy(result.arrays["correct"]).double().mean(-1)
        penalty = grouped(population_penalties(accuracy), groups)
        alike = grouped(torch.from_numpy(result.arrays["cka"]), groups)
        print("mean over pairs of models, 95 % intervals over models: within a group, and between")
        for cut in range(accuracy.shape[-1]):
            line = f"  cut {cut - 1:3d}   accuracy penalty {penalty.within[cut]:+.3f}   {penalty.between[cut]:+.3f}"
            after = f"   CKA {alike.within[cut - 1]:+.3f}   {alike.between[cut - 1]:+.3f}" if cut else ""
            print(line + after)


def _load(members: Sequence[Member], config: AnalyzeConfig, pairs: Pairs) -> list[FrozenModel]:
    """Return the models, whose labels are checked on pairs that they should get right."""
    models = [load_model(each.config) for each in members]
    for model in models:
        if not model.classes:
            raise ModelError(f"{model.name} is no classifier; a population is of classifiers of pairs")
        same_vocabulary(models[0], model)
    own = "report" if len(models[0].classes) == len(MNLI) else "challenge"
    known = pairs if pairs.classes == MNLI else read_pairs(config.pairs, own)
    part = known.sample(min(CHECKED, len(known)), config.seed)
    whole = _encode(part, models, config).batch(range(len(part)))
    for model in models:
        logits = model.full(whole.tokens, whole.mask.long(), whole.types).cpu()
        check_labels(logits, part.labels, model.classes, part.classes, name=model.name)
    return models


def _encode(pairs: Pairs, models: Sequence[FrozenModel], config: AnalyzeConfig) -> EncodedPairs:
    context = min(model.context for model in models)
    return encode(pairs, models[0].tokenizer, context, config.pairs.truncate)


def _stitched(models: Sequence[FrozenModel], encoded: EncodedPairs, pairs: Pairs, at_once: int) -> ClassLosses:
    """Return losses and correctness (source, target, cut, pair)."""
    shape = len(models), len(models), models[0].n_layers + 1, len(pairs)
    losses, correct = torch.zeros(shape, dtype=torch.float64), torch.zeros(shape, dtype=torch.bool)
    parts = list(batches(encoded, STITCH_BATCH))
    for number, batch in enumerate(parts, 1):
        labels, mask = pairs.labels[batch.rows], batch.mask.long()
        part = identity_stitches(
            models, batch.tokens, labels, pairs.classes, mask=mask, types=batch.types, at_once=at_once
        )
        losses[..., batch.rows], correct[..., batch.rows] = part.losses, part.correct
        if number % 10 == 0:
            log.info("stitched batch %d of %d", number, len(parts))
    return ClassLosses(losses, correct)


def _likeness(
    models: Sequence[FrozenModel], encoded: EncodedPairs, measure: Any
) -> tuple[Float[Tensor, "m m l"], Float[Tensor, "b m m l"]]:
    """Return CKA of every two models at each layer, and the HSIC of each batch that it comes from."""
    from thinkalike.measures import CKA  # torchmetrics takes seconds to import

    metrics = [CKA(len(models), len(models)) for _ in range(models[0].n_layers)]
    options = {key: getattr(measure, key) for key in ("tokens_per_batch", "site", "include_padding")}
    for batch in pair_batches(models, encoded, **options).starting(0):
        for number, (metric, layer) in enumerate(zip(metrics, zip(*batch.states, strict=True), strict=True)):
            try:
                metric.update(layer, layer)
            except ValueError as error:  # what it calls layers are models
                raise DataError(f"block {number} of {', '.join(model.name for model in models)}: {error}") from error
    if not metrics[0].update_called:
        raise DataError(f"too few pairs for measure.tokens_per_batch={measure.tokens_per_batch}; lower it")
    results, m = [metric.compute() for metric in metrics], len(models)
    hsics = torch.stack([each.hsics[:, :m, :m] for each in results], -1)
    return torch.stack([each.value for each in results], -1), hsics


def _table(members: Sequence[Member], layers: int, stitched: ClassLosses) -> pd.DataFrame:
    """Return one row per source, target and cut; the penalty is what the target loses of its own accuracy and loss."""
    accuracy, loss = stitched.correct.double().mean(-1), stitched.losses.mean(-1)
    values = {
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_penalty": population_penalties(accuracy),
        "loss_penalty": -population_penalties(loss),
    }
    return _long(members, range(-1, layers), "cut", values)


def _cells(members: Sequence[Member], likeness: Float[Tensor, "m m l"]) -> pd.DataFrame:
    return _long(members, range(likeness.shape[-1]), "layer", {"value": likeness})


def _long(members: Sequence[Member], places: range, place: str, values: dict[str, Tensor]) -> pd.DataFrame:
    rows = itertools.product(members, members, places)
    table = pd.DataFrame(
        [(a.name, b.name, a.group, b.group, at) for a, b, at in rows],
        columns=["source", "target", "group_of_source", "group_of_target", place],
    )
    return table.assign(**{name: value.flatten().numpy() for name, value in values.items()})
