"""task=nli: a classifier of pairs from a pretrained BERT, one member of a population."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from thinkalike.classification import Outcome, class_losses
from thinkalike.config import ModelConfig, TrainConfig
from thinkalike.data import EncodedPairs, Pairs, batches, encode
from thinkalike.errors import ConfigError, DataError, nearest
from thinkalike.jobs.pairs import WHOLE, parts_of, read_pairs
from thinkalike.jobs.steps import finished, held, prepare, settings_of
from thinkalike.models import FrozenModel, checkpoint_fingerprint, load_model, new_classifier, pick_device
from thinkalike.store import Job, key_of
from thinkalike.training import Finetuning, Run, fit, logged

log = logging.getLogger(__name__)

CHECKPOINT = "model"  # the folder in a result
BATCH = 256  # pairs of a report
REPORT = "held-out"  # the name of its row


def nli(config: TrainConfig) -> Path:
    """Fine-tune `model` on pairs; leaves a checkpoint in Hugging Face format and what it gets right.

    Members of a population differ in `nli.index` alone, which decides the head's initial weights and the order of the
    pairs.
    """
    settings = settings_of(config, "model", "nli", "pairs")
    settings["pairs"] |= {"heuristic": None, "label": None}  # of a report: here all parts are
    pairs = {side: read_pairs(config.pairs, side) for side in ("fit", "report", "challenge")}
    digests = {side: each.fingerprint() for side, each in pairs.items()} | {
        "model": checkpoint_fingerprint(config.model)
    }
    job = Job(config.store, "nli", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with held(job, config.trainer) as partial:
        prepare(config.nli.index, config.trainer.threads)
        module, tokenizer = new_classifier(config.model, pairs["fit"].classes)
        if config.nli.context > (longest := module.config.max_position_embeddings):
            raise ConfigError(f"nli.context={config.nli.context} is longer than the {longest} of {config.model.name}")
        options = tokenizer, config.nli.context, config.pairs.truncate
        encoded = {side: encode(each, *options) for side, each in pairs.items()}
        trained = Finetuning(module.train(), encoded["fit"], pairs["fit"].labels, config.nli, config.nli.index)
        name = f"{config.model.name}-nli-{config.nli.index}"
        run = Run(
            name,
            partial,
            job.store,
            torch.device(pick_device(config.model.device)),
            config.trainer,
            config.logger,
            settings,
        )
        with logged(run) as loggers:
            fit(trained, run, loggers)
        folder = job.out() / CHECKPOINT
        module.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        model = load_model(
            ModelConfig(name=name, path=str(folder), device=config.model.device, context=config.nli.context)
        )
        table = _table(model, pairs, encoded)
        scalars = {"heldout_accuracy": accuracy(table, REPORT), "challenge_accuracy": accuracy(table, WHOLE)}
        log.info("%s: held-out accuracy %.3f, challenge %.3f", name, *scalars.values())
        truncated = {side: each.truncated for side, each in encoded.items()}
        return job.finish(scalars, table, {"models": [model.describe()], "pairs": digests, "truncated": truncated})


def accuracy(table: pd.DataFrame, part: str) -> float:
    """Of the row of a finished job that is called so.

    Raises:
        DataError: there is no such part.
    """
    found = dict(zip(table["set"], table["accuracy"], strict=True))
    if part not in found:
        raise DataError(f"the pairs have no part '{part}'; {nearest(part, found)}")
    return float(found[part])


def _table(model: FrozenModel, pairs: dict[str, Pairs], encoded: dict[str, EncodedPairs]) -> pd.DataFrame:
    """Accuracy and loss on held-out pairs, on the challenge, and on every part of it."""
    report, whole = (_outcomes(model, pairs[side], encoded[side]) for side in ("report", "challenge"))
    rows = [_row(REPORT, report, range(len(pairs["report"])))]
    rows += [_row(name, whole, places) for name, places in parts_of(pairs["challenge"]).items()]
    return pd.DataFrame([{"model": model.name, **row} for row in rows])


def _row(name: str, outcome: Outcome, places: Any) -> dict[str, Any]:
    index = torch.tensor(list(places))
    mean = {"accuracy": outcome.correct[index].double().mean(), "loss": outcome.losses[index].mean()}
    return {"set": name, "pairs": len(index), **{key: float(value) for key, value in mean.items()}}


@torch.no_grad()
def _outcomes(model: FrozenModel, pairs: Pairs, encoded: EncodedPairs) -> Outcome:
    """What a classifier gets right, pair by pair."""
    losses, correct = torch.zeros(len(pairs), dtype=torch.float64), torch.zeros(len(pairs), dtype=torch.bool)
    for batch in batches(encoded, BATCH):
        logits = model.full(batch.tokens, batch.mask.long(), batch.types).cpu()
        found = class_losses(logits, pairs.labels[batch.rows], model.classes, pairs.classes)
        losses[batch.rows], correct[batch.rows] = found.losses, found.correct
    return Outcome(losses, correct)
