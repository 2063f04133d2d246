"""The jobs behind the doors: configuration, models and data, training or measure, store; one function each."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from thinkalike.config import AnalyzeConfig, DataConfig, ModelConfig, TrainConfig, as_dict
from thinkalike.data import Corpus, TokenRows, identity, read_tokens, training_texts
from thinkalike.errors import ConfigError
from thinkalike.measures import bootstrap_interval, sum_by_document, unigram_entropy
from thinkalike.models import ASSETS, FrozenModel, build_mini, load_model, save_mini, train_tokenizer
from thinkalike.store import Job, key_of
from thinkalike.training import pretrain as run_pretraining
from thinkalike.training.stitching import next_token_losses

log = logging.getLogger(__name__)

BATCH_TOKENS = 8192  # of a report


def pretrain(config: TrainConfig) -> Path:
    """Train the mini that `model` describes; leaves weights, tokenizer and card, and ships them if asked."""
    model = config.model
    if not model.architecture:
        raise ConfigError(f"model={model.name} has no architecture to train; task=pretrain makes minis, e.g. gelu-3l-mini")
    settings = as_dict(config) | {"target": None, "stitch": None, "layers": None}
    job = Job(config.store, "pretraining", key_of(settings, {"data": identity(config.data)}), settings)
    if finished(job, config.force):
        return job.folder
    with job.running() as partial:
        prepare(config.seed, config.trainer.threads)
        tokenizer = train_tokenizer(training_texts(config.data), config.pretrain.vocabulary)
        corpus = read_corpus(config.data, tokenizer, int(model.context or 256), bos=model.bos, fit_tokens=None)
        module = build_mini(model.architecture, len(tokenizer), model.seed)
        run_pretraining(
            module, corpus.fit.tokens, config.pretrain, model.seed, partial, config.trainer, config.logger,
            model.name, settings,
        )  # fmt: skip
        folder = job.out() / model.name
        card = {"architecture": model.architecture, "seed": model.seed, "training": training_facts(config, corpus)}
        save_mini(folder, module, tokenizer, card, "")
        mini = load_model(ModelConfig(name=model.name, family="native", mini=True, path=str(folder)))
        card["heldout"] = heldout = held_out(mini, corpus)
        save_mini(folder, module, tokenizer, card, card_text(config, card, module))
        if config.pretrain.ship:
            save_mini(ASSETS / model.name, module, tokenizer, card, card_text(config, card, module))
        log.info("%s: held-out loss %.4f nats, unigram entropy %.4f", model.name, heldout["loss"], heldout["unigram_entropy"])
        numbers = {key: value for key, value in heldout.items() if isinstance(value, float)}
        return job.finish(numbers, pd.DataFrame([{"model": model.name, **numbers}]), provenance(config, corpus, mini))


def finished(job: Job, force: bool) -> bool:
    """Whether the job's result is there already; says so."""
    if job.done and not force:
        log.info("already done; force=true does it again")
    return job.done and not force


def prepare(seed: int, threads: int | None) -> None:
    """Set what the jobs of a sweep, which share a process, would hand on to each other."""
    torch.manual_seed(seed)
    if threads:
        torch.set_num_threads(threads)


def read_corpus(data: DataConfig, tokenizer: Any, context: int, *, bos: bool, fit_tokens: int | None) -> Corpus:
    """Token rows with what the configuration leaves open filled in."""
    return read_tokens(
        data,
        tokenizer,
        context=data.context or context,
        bos=bos if data.bos is None else data.bos,
        fit_tokens=data.fit_tokens or fit_tokens,
        report_tokens=data.report_tokens or 262144,
    )


@torch.no_grad()
def held_out(model: FrozenModel, corpus: Corpus) -> dict[str, Any]:
    """Loss on the report rows with its interval over documents, and the unigram entropy of the same tokens, in nats."""
    sums, tokens = 0, 0
    count = int(corpus.report.documents.max()) + 1
    for part, owner in batches(corpus.report):
        losses = next_token_losses(model, [model.head(part, model.n_layers - 1)], part)[0].flatten().cpu()
        sums = sums + sum_by_document(losses, owner, count)
        tokens = tokens + sum_by_document(torch.ones_like(losses), owner, count)
    mean, low, high = (float(value) for value in bootstrap_interval(sums, tokens))  # type: ignore[arg-type]
    entropy = unigram_entropy(corpus.report.tokens[:, 1:].flatten())
    return {"loss": mean, "loss_low": low, "loss_high": high, "unigram_entropy": entropy, "tokens": corpus.fingerprint()}


def batches(rows: TokenRows) -> Any:
    """(tokens, document of each predicted token) in pieces of about BATCH_TOKENS."""
    size = max(BATCH_TOKENS // rows.tokens.shape[1], 1)
    for tokens, documents in zip(rows.tokens.split(size), rows.documents.split(size), strict=True):
        yield tokens.long(), documents[:, 1:].flatten()


def training_facts(config: TrainConfig, corpus: Corpus) -> dict[str, Any]:
    steps = max(config.pretrain.tokens // config.pretrain.tokens_per_step, 1)
    return {
        "data": config.data.name,
        "tokens_seen": steps * config.pretrain.tokens_per_step,
        "distinct_tokens": corpus.counts["fit_tokens"],
        "steps": steps,
        "learning_rate": config.pretrain.lr,
        "command": f"python train.py task=pretrain model={config.model.name}",
    }


def card_text(config: TrainConfig, card: dict[str, Any], module: torch.nn.Module) -> str:
    """The model card."""
    facts, heldout, shape = card["training"], card["heldout"], card["architecture"]
    parameters = sum(weight.numel() for weight in module.parameters())
    blocks = sum(weight.numel() for name, weight in module.named_parameters() if name.startswith("layers."))
    return f"""# {config.model.name}

A decoder-only transformer for tests and tutorials of representation comparison, trained from scratch by this project.

| | |
|---|---|
| architecture | {shape["n_layers"]} blocks, d_model {shape["d_model"]}, {shape["n_heads"]} heads, d_mlp {shape["d_mlp"]}, {shape["act_fn"]}, context {shape["n_ctx"]} |
| parameters | {parameters:,}, of them {blocks:,} in the blocks |
| tokenizer | byte-level BPE, {config.pretrain.vocabulary} entries, trained on the same text |
| data | the source of Python's standard library without its tests; {facts["distinct_tokens"]:,} distinct tokens |
| tokens seen | {facts["tokens_seen"]:,} in {facts["steps"]:,} steps of {config.pretrain.tokens_per_step} |
| held-out loss | {heldout["loss"]:.4f} nats per token (95 % interval over documents {heldout["loss_low"]:.3f} to {heldout["loss_high"]:.3f}) |
| unigram entropy of the same tokens | {heldout["unigram_entropy"]:.4f} nats |
| seed | {card["seed"]}: models of one seed and depth share initial weights and data order |
| made by | `{facts["command"]}` |
| weights | half precision; the loss above is that of the shipped weights |
"""


def provenance(config: TrainConfig | AnalyzeConfig, corpus: Corpus, *models: FrozenModel) -> dict[str, Any]:
    """What was computed with: models, tokens, seed."""
    return {
        "models": [model.describe() for model in models],
        "data": {"name": config.data.name, "tokens": corpus.fingerprint(), **corpus.counts},
        "seed": config.seed,
    }


def stitch(config: TrainConfig) -> Path:
    raise NotImplementedError
