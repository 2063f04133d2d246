"""measure=population: identity stitches and CKA of all pairs of classifiers (Brown et al. 2023, section 4)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, Optional

import pandas as pd
import torch
from jaxtyping import Bool
from torch import Tensor

from thinkalike.config import RUNS, MeasureConfig, ModelConfig, setting, settings_of
from thinkalike.config.groups import with_changes
from thinkalike.config.parts import COUNTS, TOKENS_AT_ONCE
from thinkalike.contrib.populations import members as joint
from thinkalike.contrib.populations.config import PopulationJob
from thinkalike.contrib.populations.measures import (
    Grouped,
    IdentityStitches,
    check_alike,
    check_labels,
    flips,
    grouped,
    population_penalties,
)
from thinkalike.contrib.populations.members import Member
from thinkalike.contrib.populations.pairs import MNLI, PAIR, EncodedPairs, Pairs, batches, encode, read_pairs, tokens_of
from thinkalike.data.alignment import check_same_tokenizer
from thinkalike.errors import ConfigError, ModelError
from thinkalike.job import Instrument, Outcome, Work
from thinkalike.models.families import check_models
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import Column, Table, few, number_column, show_table, show_text, span
from thinkalike.store import Headline, Result

CHECKED = 300  # pairs that labels are checked on


# ruff: noqa: UP045
@dataclass
class PopulationMeasureConfig(MeasureConfig):
    """The settings of the comparison of a population."""

    kind: str = "population"
    side: Literal["report", "challenge"] = "report"  # of the pairs
    # that CKA compares; cls: the first, which the classifier reads
    tokens: Literal["all", "cls"] = setting("all", by_recipe=True)
    cka_pairs: Optional[int] = setting(None, least=1, most=COUNTS)  # how many, at random, CKA reads, in brown2023 about
    # 1000; null: all
    tokens_per_batch: int = setting(1024, least=1, most=TOKENS_AT_ONCE)  # of CKA; of tokens=cls at most a quarter of
    # what it reads, so that there are four batches
    batch: int = setting(64, least=1, most=10**5)  # pairs that run at once
    # sources that run through a target's blocks together
    at_once: int = setting(4, least=1, most=10**5)


class Population(
    Instrument[PopulationJob],
    kind="population",
    version=3,
    config=PopulationJob,
    reads=("measure", "pairs", "population", "seed"),
):
    """Stitches every two members at every cut, and compares every two by layer, on the pairs of `measure.side`.

    Its arrays are by example or batch: losses in nats, the predicted class and whether it is right (source, target,
    cut, pair), CKA (source, target, layer) and its HSICs.
    """

    needs_store: ClassVar[bool] = True  # of the jobs that fine-tune members
    is_shared: ClassVar[bool] = True

    def settings_read(self, config: PopulationJob) -> frozenset[str]:
        """Return what the comparison reads, and how its members run."""
        return super().settings_read(config) | {f"model.{name}" for name in RUNS}

    def inputs(self, config: PopulationJob) -> Mapping[str, Any]:
        check_models({"model": config.model})  # a device that is not there is refused before members are fine-tuned
        side = config.measure_as(PopulationMeasureConfig).side
        pairs = read_pairs(config.pairs, side)
        return {"pairs": joint.halves(config, pairs)[1] if side == "challenge" else pairs}

    def prepare(self, config: PopulationJob) -> Mapping[str, Any]:
        """Return the members, which are fine-tuned first where the store lacks them."""
        stated = joint.members_of(config)
        members = [each._replace(config=as_chosen(each.config, config)) for each in stated]
        if twice := [name for name, count in Counter(each.name for each in members).items() if count > 1]:
            raise ConfigError(f"population={config.population.name} names {twice[0]} twice")
        changed = {  # what the key has to know of how members run, where it is not as stated
            f"{key}={getattr(now.config, key)}"
            for before, now in zip(stated, members, strict=True)
            for key in ("dtype", "context")
            if getattr(now.config, key) != getattr(before.config, key)
        }
        known: dict[str, Any] = {"members run with": ", ".join(sorted(changed))} if changed else {}
        return known | {each.name: each for each in members}

    def models_of(self, config: PopulationJob) -> dict[str, ModelConfig]:
        """Return one model for all members, which have the same shape."""
        return {"member": as_chosen(joint.a_member(config), config)}

    def passes(self, config: PopulationJob, shapes: Shapes) -> list[Passes]:
        """Return the passes of all stitches and those of CKA, without fine-tunings that are missing.

        From each cut on, each of m · m pairs of members runs the target's blocks: m² (L + 1) / 2 passes, and m of the
        sources.
        """
        measure: Any = config.measure
        shape, members, read = shapes["member"], joint.members_in(config), tokens_of(config.pairs, measure.side)
        alike = min(PAIR * float(measure.cka_pairs or read), read)
        stitches = members**2 * (shape.layers + 1) / 2 + members
        return [
            shape.passes("stitches", read, PAIR, stitches, full=False),
            shape.passes("CKA", alike, PAIR, members, full=False),
        ]

    def holds(self, config: PopulationJob, shapes: Shapes) -> float:
        """Return the bytes of the weights of all members but one, which is counted as the model."""
        return (joint.members_in(config) - 1) * shapes["member"].bytes

    def run(self, config: PopulationJob, work: Work) -> Outcome:
        measure = config.measure_as(PopulationMeasureConfig)
        pairs: Pairs = work.input("pairs", Pairs)
        members = [each for each in work.inputs.values() if isinstance(each, Member)]
        with work.phase("loading"):
            models = _load(members, config, pairs)
        encoded = _encode(pairs, models, config)
        if not work.processes.rank:  # first, as it is quick, and may be refused
            likeness = joint.likeness_of_members(models, encoded, measure)
        stitched = joint.stitched_members(models, encoded, pairs, measure, work)
        correct = stitched.predicted == pairs.labels
        table = _table(members, stitched, correct)
        itself = table[table["source"] == table["target"]]
        own = itself.groupby("group_of_source")["accuracy"].mean()
        read = {name: each if isinstance(each, str) else each.fingerprint() for name, each in work.inputs.items()}
        facts = {"source": pairs.source, "count": len(pairs), "truncated": encoded.truncated, **read}
        arrays = {"losses": stitched.losses.float(), "predicted": stitched.predicted, "correct": correct}
        arrays |= {"cka": likeness.value, "hsics": likeness.hsics}
        return Outcome(
            table,
            {f"accuracy_{group}": float(own[group]) for group in dict.fromkeys(each.group for each in members)},
            {name: values.numpy() for name, values in arrays.items()},
            {"cka": _long(members, range(models[0].n_layers), "layer", {"value": likeness.value})},
            models=[model.describe() for model in models],
            facts={"pairs": facts, "cka": likeness.facts},
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return the mean share of flips between groups at the cut where it is greatest, and that within them there."""
        flipped = _means(result)["flips"]
        cut = int(flipped.between.value.argmax())
        both = {"flips_between_groups": flipped.between, "flips_within_groups": flipped.within}
        return [Headline.with_ends(name, *map(float, each[cut])) for name, each in both.items()]

    def show(self, result: Result) -> None:
        means = _means(result)
        cuts = len(means["flips"].between.value)
        rows, columns = few(cuts), []
        for name, found in means.items():
            for which, each in (("within", found.within), ("between", found.between)):
                # there are no layers at cut -1
                cells = [""] * (cuts - len(each.value)) + [f"{value:.2f}" for value in each.value]
                columns.append(Column(f"{name} {which}", [cells[row] for row in rows]))
        title = "mean over pairs of models within a group, and between groups"
        show_table(Table(title, [number_column("cut", [row - 1 for row in rows]), *columns]))
        cut = int(means["flips"].between.value.argmax())
        both = means["flips"].between, means["flips"].within
        ends = [span(each.value[cut], each.low[cut], each.high[cut], ".2f") for each in both]
        show_text(f"Stitches flip most labels at cut {cut - 1}: {ends[0]} between groups, {ends[1]} within.")


def _means(result: Result) -> dict[str, Grouped]:
    """Return penalties, flips and CKA within and between groups, by cut or layer."""
    groups = list(result.table.drop_duplicates("source")["group_of_source"])
    arrays = {name: torch.from_numpy(result.arrays[name]) for name in ("correct", "predicted", "cka")}
    values = {
        "accuracy penalty": population_penalties(arrays["correct"].double().mean(-1)),
        "flips": flips(arrays["predicted"]).mean(-1),
        "CKA": arrays["cka"],
    }
    return {name: grouped(each, groups) for name, each in values.items()}


def as_chosen(member: ModelConfig, config: PopulationJob) -> ModelConfig:
    """Return a member that runs in the dtype, on the device and with the context that a command line gives `model`.

    Only settings that the command line names count, and not those that model=NAME brings along.
    """
    given = {} if config.model.name else settings_of(config.model)
    return with_changes(member, {key: value for key, value in given.items() if key in RUNS})


def _load(members: Sequence[Member], config: PopulationJob, pairs: Pairs) -> list[FrozenModel]:
    """Return the models, whose labels are checked on pairs that they should get right."""
    models = [load_model(each.config) for each in members]
    for model in models:
        if not model.classes:
            raise ModelError(f"{model.name} is no classifier; a population is of classifiers of pairs")
        check_same_tokenizer(models[0], model)
    check_alike(models)
    own = "report" if len(models[0].classes) == len(MNLI) else "challenge"
    known = pairs if pairs.classes == MNLI else read_pairs(config.pairs, own)
    part = known.sample(min(CHECKED, len(known)), config.seed)
    read = list(batches(_encode(part, models, config), config.measure_as(PopulationMeasureConfig).batch))
    for model in models:
        logits = torch.empty(len(part), len(model.classes), dtype=torch.float64)
        for batch in read:
            logits[batch.rows] = model.full(batch.tokens, batch.mask.long(), batch.types).double().cpu()
        check_labels(logits, part.labels, model.classes, part.classes, name=model.name)
    return models


def _encode(pairs: Pairs, models: Sequence[FrozenModel], config: PopulationJob) -> EncodedPairs:
    return encode(pairs, models[0].tokenizer, min(model.context for model in models))


def _table(members: Sequence[Member], stitched: IdentityStitches, correct: Bool[Tensor, "m m c n"]) -> pd.DataFrame:
    """Return one row per source, target and cut.

    A penalty is what the target loses of its own accuracy and loss; flips are the share of predictions, in [0, 1], that
    are not the target's own.
    """
    accuracy, loss = correct.double().mean(-1), stitched.losses.mean(-1)
    values = {
        "accuracy": accuracy,
        "loss": loss,
        "accuracy_penalty": population_penalties(accuracy),
        "loss_penalty": -population_penalties(loss),
        "flips": flips(stitched.predicted).mean(-1),
    }
    return _long(members, range(-1, correct.shape[2] - 1), "cut", values)


def _long(members: Sequence[Member], places: range, place: str, values: dict[str, Tensor]) -> pd.DataFrame:
    rows = itertools.product(members, members, places)
    table = pd.DataFrame(
        [(a.name, b.name, a.group, b.group, at) for a, b, at in rows],
        columns=["source", "target", "group_of_source", "group_of_target", place],
    )
    return table.assign(**{name: value.flatten().numpy() for name, value in values.items()})
