"""measure=loss: a model's own loss on held-out text, beside the unigram entropy of the same tokens."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from thinkalike.config import AnalyzeConfig
from thinkalike.data import text_fingerprint
from thinkalike.jobs.steps import finished, held_out, prepare, provenance, read_corpus, settings_of
from thinkalike.models import checkpoint_fingerprint, load_model
from thinkalike.store import Job, key_of


def loss(config: AnalyzeConfig) -> Path:
    """Next-token loss of `model` on `data`, in nats per token."""
    settings = settings_of(config, "model", "data", "measure")
    digests = {"data": text_fingerprint(config.data), "model": checkpoint_fingerprint(config.model)}
    job = Job(config.store, "loss", key_of(settings, digests), settings)
    if finished(job, config.force):
        return job.folder
    with job.running():
        prepare(config.seed, config.threads)
        model = load_model(config.model)
        corpus = read_corpus(config.data, model.tokenizer, model.context, bos=model.bos_each_row, fit_tokens=1)
        numbers = held_out(model, corpus)
        print(
            f"{model.name} on {config.data.name}: {numbers['loss']:.4f} nats per token "
            f"({numbers['loss_low']:.4f} to {numbers['loss_high']:.4f}); "
            f"unigram entropy {numbers['unigram_entropy']:.4f}"
        )
        return job.finish(
            numbers, pd.DataFrame([{"model": model.name, **numbers}]), provenance(config, corpus.facts(), model)
        )
