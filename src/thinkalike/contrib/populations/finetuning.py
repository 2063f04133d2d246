"""task=nli: a classifier of pairs of sentences from a pretrained BERT, one member of a population."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
from jaxtyping import Int
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from thinkalike.config import ModelConfig, SettingValues
from thinkalike.contrib.populations.config import NLIConfig, NLIJob
from thinkalike.contrib.populations.measures import ClassLosses, class_losses
from thinkalike.contrib.populations.pairs import PAIR, EncodedPairs, Pairs, batches, encode, read_pairs, tokens_of
from thinkalike.contrib.pretraining.instrument import WholeModel, cosine
from thinkalike.errors import ConfigError, ModelError
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.job.setting_groups import OF_STITCHES, left_in_key
from thinkalike.models.access import reached
from thinkalike.models.config_json import read_config_json
from thinkalike.models.families import CLASSIFIER, FAMILIES, pick_device
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.loading_errors import explained
from thinkalike.models.readers import read_weights
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.models.tokenizer_reading import read_tokenizer
from thinkalike.screen import Table, number_column, show_table, show_text, text_column
from thinkalike.store import Headline, Result
from thinkalike.training.optimizers import scheduled
from thinkalike.training.run import Run, StepData, fit, loggers_of

CHECKPOINT = "model"  # the folder of the classifier in a result
BATCH = 256  # pairs of a report
REPORT = "held-out"  # the name of its row
BERT_SPREAD = 0.02 * 768**0.5  # of the weights that BERT began with, times the root of its width


class Finetuning(WholeModel):
    """Trains a classifier of transformers on pairs, in an order that the seed decides; the rate falls to zero."""

    config: NLIConfig
    model: Any  # a classifier of transformers

    def __init__(self, model: Any, pairs: EncodedPairs, labels: Int[Tensor, " n"], config: NLIConfig, seed: int):
        super().__init__(max(config.epochs * len(pairs) // config.pairs_per_step, 1))
        self.model, self.pairs, self.labels, self.config, self.seed = model, pairs, labels, config, seed
        blocks = model.base_model.encoder.layer
        if config.freeze > len(blocks):
            raise ModelError(f"nli.freeze={config.freeze}, but there are {len(blocks)} blocks")
        for part in (model.base_model.embeddings, *blocks[: config.freeze]) if config.freeze else ():
            part.requires_grad_(False)

    def data(self) -> StepData:
        """Return the rows of the training, each the number of a pair."""
        places = torch.arange(len(self.pairs))[:, None]
        return StepData(places, self.config.pairs_per_step, self.steps, self.seed)

    def transfer_batch_to_device(self, batch: Tensor, *_: Any) -> Tensor:
        """Leave the numbers of pairs where the pairs are."""
        return batch

    def training_step(self, places: Int[Tensor, "b 1"], _: int) -> Tensor:
        torch.manual_seed(self.seed * 1_000_003 + self.global_step)  # dropout depends on the step alone, as batches do
        batch = self.pairs.batch(places[:, 0].tolist())
        tokens, mask, types = (part.to(self.device) for part in (batch.tokens, batch.mask.long(), batch.types))
        logits = self.model(tokens, attention_mask=mask, token_type_ids=types).logits
        return self.step_loss(cross_entropy(logits, self.labels[batch.rows].to(self.device)), "nli.lr")

    def configure_optimizers(self) -> Any:
        config, body = self.config, {id(weight) for weight in self.model.base_model.parameters()}
        trained = [weight for weight in self.model.parameters() if weight.requires_grad]
        head = {"params": [each for each in trained if id(each) not in body], "lr": config.head_lr or config.lr}
        rest = {"params": [each for each in trained if id(each) in body], "lr": config.lr}
        optimizer = torch.optim.AdamW([rest, head], lr=config.lr, weight_decay=config.weight_decay)
        warmup = round(config.warmup * self.steps)
        return scheduled(optimizer, lambda step: cosine(step, self.steps, warmup, 0.0))


class ClassifierFinetuning(
    Instrument[NLIJob], kind="nli", version=3, config=NLIJob, reads=("model", "nli", "pairs", "trainer")
):
    """Fine-tunes `model` on pairs; leaves a checkpoint in Hugging Face format and what it gets right.

    Members of a population differ in `nli.index` alone, which decides the head's initial weights and the order of the
    pairs.
    """

    def inputs(self, config: NLIJob) -> Mapping[str, Any]:
        pairs = {side: read_pairs(config.pairs, side) for side in ("fit", "report", "challenge")}
        return pairs | fingerprints(config, ("model",))

    def unread(self, config: NLIJob) -> SettingValues:
        all_pairs = {"pairs.heuristic": None, "pairs.label": None}  # are reported
        return left_in_key(config, OF_STITCHES) | all_pairs

    def seed(self, config: NLIJob) -> int:
        return config.nli.index

    def passes(self, config: NLIJob, shapes: Shapes) -> list[Passes]:
        seen = config.nli.epochs * tokens_of(config.pairs, "fit")
        whole = replace(config.pairs, heuristic=None)
        report = tokens_of(config.pairs, "report") + tokens_of(whole, "challenge")
        training = shapes["model"].passes("training", seen, PAIR, times=3, full=False)
        return [training, shapes["model"].passes("report", report, PAIR, full=False)]

    def run(self, config: NLIJob, work: Work) -> Outcome:
        pairs: dict[str, Pairs] = {side: work.input(side, Pairs) for side in ("fit", "report", "challenge")}
        module, tokenizer = new_classifier(config.model, pairs["fit"].classes, config.nli.head_std, config.nli.redraw)
        if config.nli.context > (longest := module.config.max_position_embeddings):
            raise ConfigError(f"nli.context={config.nli.context} is longer than the {longest} of {config.model.called}")
        encoded = {side: encode(each, tokenizer, config.nli.context) for side, each in pairs.items()}
        trained = Finetuning(module.train(), encoded["fit"], pairs["fit"].labels, config.nli, config.nli.index)
        name = f"{config.model.name}-nli-{config.nli.index}"
        device = torch.device(pick_device(config.model.device))
        run = Run(work.job.partial, device, config.trainer, work.tracker)
        with work.phase("fit"):
            fit(trained, trained.data(), run, loggers_of(run, config.logger.kind))
        folder = work.job.aside / CHECKPOINT
        module.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        made = ModelConfig(name=name, path=str(folder), device=config.model.device, context=config.nli.context)
        model = load_model(made)
        with work.phase("report"):
            table = _table(model, pairs, encoded)
        accuracies = table.set_index("set")["accuracy"]
        scalars = {"heldout_accuracy": float(accuracies[REPORT]), "challenge_accuracy": float(accuracies["challenge"])}
        facts: dict[str, Any] = {"pairs": {side: each.fingerprint() for side, each in pairs.items()}}
        facts["truncated"] = {side: each.truncated for side, each in encoded.items()}
        return Outcome(table, scalars, models=[model.describe()], facts=facts)

    def headlines(self, result: Result) -> list[Headline]:
        return [Headline(name, result.scalars[name]) for name in ("heldout_accuracy", "challenge_accuracy")]

    def show(self, result: Result) -> None:
        table, scalars = result.table, result.scalars
        columns = [text_column("set", table["set"]), number_column("pairs", table["pairs"], ",")]
        columns += [number_column(name, table[name], ".3f") for name in ("accuracy", "loss")]
        show_table(Table(f"{table['model'].iloc[0]}: accuracy, and loss in nats per pair", columns))
        both = (f"{scalars[name]:.1%}" for name in ("heldout_accuracy", "challenge_accuracy"))
        show_text("It is right on {} of the held-out pairs, and on {} of the challenge.".format(*both))


def new_classifier(
    config: ModelConfig, classes: Sequence[str], spread: float | None = None, redraw: int | None = None
) -> tuple[Any, Any]:
    """Return a classifier with a pretrained body and a head of random weights, and the tokenizer of the body.

    The spread is that of the head's weights, by default the checkpoint's initializer_range. Blocks from `redraw` on are
    drawn anew, with the pooler, at the spread that BERT has for their width.
    """
    import transformers

    with explained(config), reached(config) as (place, _):
        kind, family = read_config_json(config, place).get("model_type", config.family), FAMILIES[CLASSIFIER]
        if kind != family.model_type:
            raise ModelError(f"task=nli fine-tunes bert; {config.called} is a {kind}: choose model=bert-mini")
        names = dict(enumerate(classes))
        module = read_weights(
            getattr(transformers, family.architecture),
            config,
            place,
            ["embeddings", "encoder"],
            dtype=torch.float32,
            id2label=names,
            label2id={name: number for number, name in names.items()},
            **({} if spread is None else {"initializer_range": spread}),
        )
        body, blocks = module.base_model, module.base_model.encoder.layer
        if redraw is not None and redraw >= len(blocks):
            raise ModelError(f"nli.redraw={redraw}: {config.called} has blocks 0 to {len(blocks) - 1}")
        anew = [] if redraw is None else [*blocks[redraw:], *([body.pooler] if body.pooler else [])]
        _draw(anew, BERT_SPREAD / body.config.hidden_size**0.5)
        _draw([part for part in module.children() if part is not body], module.config.initializer_range)
        return module, read_tokenizer(config, place)


def _draw(parts: Sequence[nn.Module], spread: float) -> None:
    for layer in (layer for part in parts for layer in part.modules()):
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=spread)
            nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.LayerNorm):
            layer.reset_parameters()


def accuracy_on(model: FrozenModel, pairs: Pairs) -> float:
    """Return the share of pairs that a classifier gets right, in [0, 1]."""
    return float(_evaluated(model, pairs, encode(pairs, model.tokenizer, model.context)).correct.double().mean())


def _table(model: FrozenModel, pairs: dict[str, Pairs], encoded: dict[str, EncodedPairs]) -> pd.DataFrame:
    """Return a row for the held-out pairs, and one for each part of the challenge."""
    rows, parts = [], {"report": {REPORT: list(range(len(pairs["report"])))}, "challenge": pairs["challenge"].parts()}
    for side, places in parts.items():
        found = _evaluated(model, pairs[side], encoded[side])
        for name, index in places.items():
            mean = {"accuracy": found.correct[index].double().mean(), "loss": found.losses[index].mean()}
            about = {"model": model.name, "set": name, "pairs": len(index)}
            rows.append(about | {key: float(value) for key, value in mean.items()})
    return pd.DataFrame(rows)


@torch.no_grad()
def _evaluated(model: FrozenModel, pairs: Pairs, encoded: EncodedPairs) -> ClassLosses:
    losses, correct = torch.zeros(len(pairs), dtype=torch.float64), torch.zeros(len(pairs), dtype=torch.bool)
    for batch in batches(encoded, BATCH):
        logits = model.full(batch.tokens, batch.mask.long(), batch.types).cpu()
        part = class_losses(logits, pairs.labels[batch.rows], model.classes, pairs.classes)
        losses[batch.rows], correct[batch.rows] = part.losses, part.correct
    return ClassLosses(losses, correct)
