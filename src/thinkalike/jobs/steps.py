"""Steps that every job takes."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from thinkalike.config import AnalyzeConfig, DataConfig, ModelConfig, TrainConfig, TrainerConfig, as_dict
from thinkalike.data import Corpus, read_tokens
from thinkalike.measures import bootstrap_interval, sum_by_document, unigram_entropy
from thinkalike.models import FrozenModel, pick_device
from thinkalike.store import Job
from thinkalike.training import masked_losses, next_token_losses, own_device, rank

log = logging.getLogger(__name__)

BATCH_TOKENS = 8192  # of a report


# parts of a configuration that some jobs do not read
PARTS = ("model", "target", "data", "layers", "stitch", "pretrain", "nli", "measure", "stimuli", "activations", "pairs",
         "population")  # fmt: skip


def settings_of(config: TrainConfig | AnalyzeConfig, *used: str) -> dict[str, Any]:
    """The configuration of a job that reads these parts; what it does not read cannot give it another key."""
    return {key: None if key in PARTS and key not in used else value for key, value in as_dict(config).items()}


def finished(job: Job, force: bool) -> bool:
    """Whether the job's result is there already; says so."""
    if job.done and not force:
        log.info("already done; force=true does it again")
    return job.done and not force


def held(job: Job, trainer: TrainerConfig) -> contextlib.AbstractContextManager[Path]:
    """The running job's folder for states; of several processes that share it, only the first holds its lock."""
    if not rank(trainer):
        return job.running()
    logging.getLogger("thinkalike").setLevel(logging.ERROR)  # the first process tells what happens
    return contextlib.nullcontext(job.partial)


def placed(model: ModelConfig, trainer: TrainerConfig) -> ModelConfig:
    """The model on the device that this process has."""
    return replace(model, device=own_device(pick_device(model.device), trainer))


def prepare(seed: int, threads: int | None = None) -> None:
    """Set what the jobs of a sweep, which share a process, would hand on to each other."""
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)


def read_corpus(data: DataConfig, tokenizer: Any, context: int, *, bos: bool, fit_tokens: int | None) -> Corpus:
    """Token rows, with what the configuration leaves open filled in."""
    return read_tokens(
        data,
        tokenizer,
        context=data.context or context,
        bos=bos if data.bos is None else data.bos,
        fit_tokens=data.fit_tokens or fit_tokens,
        report_tokens=data.report_tokens or 262144,
    )


@torch.no_grad()
def held_out(model: FrozenModel, corpus: Corpus) -> dict[str, float]:
    """Loss on the report rows with its interval over documents, and the unigram entropy of the same tokens, in nats.

    A model that predicts hidden tokens is asked for those that `masked_losses` hides, the same each time.
    """
    rows = corpus.report
    count, batch = int(rows.documents.max()) + 1, max(BATCH_TOKENS // rows.tokens.shape[1], 1)
    sums, tokens = torch.zeros(2, count, dtype=torch.float64)
    asked, generator = [], torch.Generator().manual_seed(0)
    for part, documents in zip(rows.tokens.long().split(batch), rows.documents.split(batch), strict=True):
        losses, predicted = _losses(model, part, generator)
        owners = documents[predicted]
        sums = sums + sum_by_document(losses, owners, count)
        tokens = tokens + sum_by_document(torch.ones_like(losses), owners, count)
        asked.append(part[predicted])
    mean, low, high = (float(value) for value in bootstrap_interval(sums, tokens))
    return {"loss": mean, "loss_low": low, "loss_high": high, "unigram_entropy": unigram_entropy(torch.cat(asked))}


def _losses(
    model: FrozenModel, tokens: Int[Tensor, "b t"], generator: torch.Generator
) -> tuple[Float[Tensor, " n"], Bool[Tensor, "b t"]]:
    """Losses of the tokens that the model predicts, and which they are."""
    if not model.predicts_next:
        losses, hidden = masked_losses(model.module, tokens.to(model.device), model.tokenizer, generator)
        return losses.cpu(), hidden.cpu()
    losses = next_token_losses(model, [model.head(tokens, model.n_layers - 1)], tokens)[0].flatten().cpu()
    later = torch.ones_like(tokens, dtype=torch.bool)
    later[:, 0] = False
    return losses, later


def provenance(config: TrainConfig | AnalyzeConfig, text: dict[str, Any], *models: FrozenModel) -> dict[str, Any]:
    """What was computed with: models, text, seed."""
    return {
        "models": [model.describe() for model in models],
        "data": {"name": config.data.name, **text},
        "seed": config.seed,
    }
