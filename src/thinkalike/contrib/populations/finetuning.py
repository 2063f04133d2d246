"""task=nli: fine-tunes a pretrained BERT to classify pairs, as one member of a population."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pandas as pd
import torch
import transformers
from jaxtyping import Int
from torch import Tensor
from torch.nn.functional import cross_entropy

from thinkalike.config import ModelConfig, SettingValues
from thinkalike.contrib.populations.class_losses import ClassLosses, class_losses
from thinkalike.contrib.populations.config import NLIConfig, NLIJob
from thinkalike.contrib.populations.encoding import EncodedPairs, encode_pairs, padded_batches
from thinkalike.contrib.populations.new_classifier import new_classifier
from thinkalike.contrib.populations.pair_sets import (
    TOKENS_PER_PAIR,
    PairSplit,
    count_tokens,
    read_pairs,
)
from thinkalike.contrib.populations.pairs import Pairs
from thinkalike.contrib.pretraining.training import WholeModel, warmup_then_cosine
from thinkalike.errors import ConfigError, ModelError
from thinkalike.job import Instrument, Outcome, Work, fingerprints
from thinkalike.job.setting_groups import OF_STITCHES, left_in_key
from thinkalike.models.families import pick_device
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.shapes import Passes, Shapes
from thinkalike.screen import Table, number_column, show_table, show_text, text_column
from thinkalike.store import Headline, Result
from thinkalike.training.curves import loggers_of
from thinkalike.training.data import StepData
from thinkalike.training.optimizers import scheduled
from thinkalike.training.run import TrainingRun
from thinkalike.training.trainer import fit

SPLITS: tuple[PairSplit, ...] = ("fit", "report", "challenge")
CHECKPOINT = "model"  # the folder of the classifier in a result
EVALUATED_AT_ONCE = 256  # pairs
HELD_OUT = "held-out"  # what the table calls the pairs of the split "report"
SEED_STRIDE = 1_000_003  # a prime beyond any number of steps, so that no two seeds share a step's


class Finetuning(WholeModel):
    """Trains a classifier of pairs of sentences; the learning rate falls to zero."""

    config: NLIConfig
    model: transformers.BertForSequenceClassification

    def __init__(
        self,
        model: transformers.BertForSequenceClassification,
        pairs: EncodedPairs,
        labels: Int[Tensor, " n"],
        config: NLIConfig,
        seed: int,
    ):
        """Compute the number of steps, and freeze the embeddings and the first blocks if asked to.

        Args:
            model: The classifier, whose weights are changed by the training.
            pairs: The tokens of the pairs of sentences.
            labels: The index of the class of each pair.
            config: The settings of the training. If `freeze` is not 0, the embeddings and this
                many blocks are frozen.
            seed: Decides the order of the pairs, and dropout.

        Raises:
            ModelError: `freeze` is larger than the number of blocks.
        """
        n_steps = max(config.epochs * len(pairs) // config.pairs_per_step, 1)
        super().__init__(n_steps)
        self.model = model
        self.pairs = pairs
        self.labels = labels
        self.config = config
        self.seed = seed

        blocks = model.base_model.encoder.layer
        if config.freeze > len(blocks):
            raise ModelError(f"nli.freeze={config.freeze}, but there are {len(blocks)} blocks")
        if config.freeze:
            model.base_model.embeddings.requires_grad_(False)
            for block in blocks[: config.freeze]:
                block.requires_grad_(False)

    def data(self) -> StepData:
        """Return the data of the training: a batch has the indices of pairs, not their tokens."""
        pair_indices = torch.arange(len(self.pairs))[:, None]
        return StepData(pair_indices, self.config.pairs_per_step, self.steps, self.seed)

    def transfer_batch_to_device(self, batch: Tensor, *_: object) -> Tensor:
        """Leave the indices of pairs on the CPU, where the pairs are."""
        return batch

    def training_step(self, pair_indices: Int[Tensor, "b 1"], _: int) -> Tensor:
        """Return the mean cross-entropy of the pairs of sentences with these indices, and log it.

        The random generator is seeded anew for each step, so that dropout depends only on the
        number of the step, and a resumed training repeats it.

        Args:
            pair_indices: The indices of b pairs of sentences, as rows of one number.
            _: The number of the batch, which Lightning passes.
        """
        torch.manual_seed(self.seed * SEED_STRIDE + self.global_step)
        batch = self.pairs.batch(pair_indices[:, 0].tolist())
        logits = self.model(
            batch.tokens.to(self.device),
            attention_mask=batch.mask.long().to(self.device),
            token_type_ids=batch.types.to(self.device),
        ).logits
        labels = self.labels[batch.pair_indices].to(self.device)
        # If the loss is not finite, the error message proposes to lower this setting.
        learning_rate_setting = "nli.lr"
        return self.step_loss(cross_entropy(logits, labels), learning_rate_setting)

    def configure_optimizers(self) -> Any:
        """Return AdamW with a linear warm-up and a cosine decay to 0.

        The classification head may have its own learning rate. Frozen weights are left out.
        """
        config = self.config
        ids_of_body_weights = {id(weight) for weight in self.model.base_model.parameters()}
        body_weights = []
        head_weights = []
        for weight in self.model.parameters():
            if not weight.requires_grad:
                continue
            if id(weight) in ids_of_body_weights:
                body_weights.append(weight)
            else:
                head_weights.append(weight)
        parameter_groups = [
            {"params": body_weights, "lr": config.lr},
            {"params": head_weights, "lr": config.head_lr or config.lr},
        ]
        optimizer = torch.optim.AdamW(
            parameter_groups, lr=config.lr, weight_decay=config.weight_decay
        )
        n_warmup_steps = round(config.warmup * self.steps)

        def share_of_peak_rate(step: int) -> float:
            """Return the learning rate at a step, as a share of the highest one."""
            return warmup_then_cosine(step, self.steps, n_warmup_steps, floor=0.0)

        return scheduled(optimizer, share_of_peak_rate)


class ClassifierFinetuning(
    Instrument[NLIJob],
    kind="nli",
    version=3,
    config=NLIJob,
    reads=("model", "nli", "pairs", "trainer"),
):
    """Fine-tunes `model` on pairs; leaves a checkpoint in Hugging Face format and its accuracy.

    Members of a population differ in `nli.index` alone, which decides the head's initial weights
    and the order of the pairs.
    """

    def inputs(self, config: NLIJob) -> Mapping[str, Pairs | str]:
        """Return what decides the numbers besides settings: pairs of sentences and the model.

        There are pairs of three splits: "fit" for training, "report" held out, and "challenge" to
        test whether the classifier relies on a heuristic such as word overlap. The pretrained
        model is given by its fingerprint, a hash of its weights.
        """
        inputs: dict[str, Pairs | str] = {}
        for split in SPLITS:
            inputs[split] = read_pairs(config.pairs, split)
        return inputs | fingerprints(config, ("model",))

    def unread(self, config: NLIJob) -> SettingValues:
        """Return settings that this job ignores, each with the value that enters the job's hash.

        This job fine-tunes a classifier. Settings of the training of stitches keep their value, as
        they have always been part of the hash under which results are stored. Two settings of
        pairs of sentences get a fixed value, so that jobs that differ only in these share one
        stored result.
        """
        # Accuracy is reported on the whole challenge set. These settings choose a part of it, on
        # which populations of classifiers are compared.
        whole_challenge = {"pairs.heuristic": None, "pairs.label": None}
        return {**left_in_key(config, OF_STITCHES), **whole_challenge}

    def seed(self, config: NLIJob) -> int:
        """Return the number of the member, which is the seed of the fine-tuning."""
        return config.nli.index

    def model_passes(self, config: NLIJob, shapes: Shapes) -> list[Passes]:
        """Return the passes of the training and of the evaluation, to estimate the job's time.

        The classifier reads pairs of sentences. A training step, with its backward pass, costs
        three times a forward pass. The evaluation reads the held-out pairs ("report") and the
        whole challenge set, even if the settings choose one heuristic.
        """
        shape = shapes["model"]
        training_tokens = config.nli.epochs * count_tokens(config.pairs, "fit")
        whole_challenge = replace(config.pairs, heuristic=None)  # None: pairs of all heuristics
        evaluation_tokens = count_tokens(config.pairs, "report")
        evaluation_tokens += count_tokens(whole_challenge, "challenge")
        return [
            shape.passes("training", training_tokens, TOKENS_PER_PAIR, times=3, with_logits=False),
            shape.passes("report", evaluation_tokens, TOKENS_PER_PAIR, with_logits=False),
        ]

    def run(self, config: NLIJob, work: Work) -> Outcome:
        """Fine-tune a classifier, save it, and report the accuracy of the saved checkpoint.

        Raises:
            ConfigError: `nli.context` is longer than what the model can read.
        """
        pairs: dict[str, Pairs] = {split: work.input(split, Pairs) for split in SPLITS}
        module, tokenizer = new_classifier(
            config.model, pairs["fit"].classes, config.nli.head_std, config.nli.redraw
        )
        longest = module.config.max_position_embeddings
        if config.nli.context > longest:
            raise ConfigError(
                f"nli.context={config.nli.context} is longer than the {longest} of "
                f"{config.model.called}"
            )
        encoded = {}
        for split, pairs_of_split in pairs.items():
            encoded[split] = encode_pairs(pairs_of_split, tokenizer, config.nli.context)

        training = Finetuning(
            module.train(), encoded["fit"], pairs["fit"].labels, config.nli, config.nli.index
        )
        device = torch.device(pick_device(config.model.device))
        run = TrainingRun(work.job.partial, device, config.trainer, work.tracker)
        with work.phase("fit"):
            fit(training, training.data(), run, loggers_of(run, config.logger.kind))
        folder = work.job.aside / CHECKPOINT
        module.cpu().save_pretrained(folder)
        tokenizer.save_pretrained(folder)

        # The report is that of the saved checkpoint, as a population reads it.
        model = load_model(
            ModelConfig(
                name=f"{config.model.name}-nli-{config.nli.index}",
                path=str(folder),
                device=config.model.device,
                context=config.nli.context,
            )
        )
        with work.phase("report"):
            table = _accuracy_table(model, pairs, encoded)
        accuracies = table.set_index("set")["accuracy"]
        return Outcome(
            table,
            {
                "heldout_accuracy": float(accuracies[HELD_OUT]),
                "challenge_accuracy": float(accuracies["challenge"]),
            },
            models=[model.describe()],
            facts={
                "pairs": {split: of_split.fingerprint() for split, of_split in pairs.items()},
                "truncated": {split: of_split.truncated for split, of_split in encoded.items()},
            },
        )

    def headlines(self, result: Result) -> list[Headline]:
        """Return the accuracies on held-out pairs and on the challenge set."""
        names = ("heldout_accuracy", "challenge_accuracy")
        return [Headline(name, result.scalars[name]) for name in names]

    def show(self, result: Result) -> None:
        """Print accuracy and loss on held-out pairs and on each subset of the challenge set.

        A subset has the pairs of one heuristic, of one class, or of both.
        """
        table = result.details
        columns = [
            text_column("set", table["set"]),
            number_column("pairs", table["pairs"], ","),
            number_column("accuracy", table["accuracy"], ".3f"),
            number_column("loss", table["loss"], ".3f"),
        ]
        title = f"{table['model'].iloc[0]}: accuracy, and loss in nats per pair"
        show_table(Table(title, columns))
        show_text(
            f"It is right on {result.scalars['heldout_accuracy']:.1%} of the held-out pairs, "
            f"and on {result.scalars['challenge_accuracy']:.1%} of the challenge."
        )


def accuracy_on(model: FrozenModel, pairs: Pairs) -> float:
    """Return the share of pairs that a classifier gets right, in [0, 1]."""
    encoded = encode_pairs(pairs, model.tokenizer, model.context)
    return float(_evaluate(model, pairs, encoded).correct.double().mean())


def _accuracy_table(
    model: FrozenModel, pairs: dict[str, Pairs], encoded: dict[str, EncodedPairs]
) -> pd.DataFrame:
    """Return a table of accuracy and loss: on held-out pairs, and on subsets of the challenge set.

    The subsets are those of one heuristic, of one class, or of both, and the whole challenge set.

    Args:
        model: The classifier.
        pairs: The pairs of each split, of which "report" (held out) and "challenge" are used.
        encoded: The tokens of the same pairs.
    """
    indices_of_subsets = {
        "report": {HELD_OUT: list(range(len(pairs["report"])))},
        "challenge": pairs["challenge"].subsets(),
    }
    rows = []
    for split, subsets in indices_of_subsets.items():
        evaluated = _evaluate(model, pairs[split], encoded[split])
        for name, pair_indices in subsets.items():
            rows.append(
                {
                    "model": model.name,
                    "set": name,
                    "pairs": len(pair_indices),
                    "accuracy": float(evaluated.correct[pair_indices].double().mean()),
                    "loss": float(evaluated.losses[pair_indices].mean()),
                }
            )
    return pd.DataFrame(rows)


@torch.no_grad()
def _evaluate(model: FrozenModel, pairs: Pairs, encoded: EncodedPairs) -> ClassLosses:
    """Return the loss of each pair in nats, and whether the predicted class is right.

    Args:
        model: The classifier.
        pairs: The pairs of sentences, with their labels.
        encoded: The tokens of the same pairs.
    """
    losses = torch.zeros(len(pairs), dtype=torch.float64)
    correct = torch.zeros(len(pairs), dtype=torch.bool)
    for batch in padded_batches(encoded, EVALUATED_AT_ONCE):
        logits = model.full(batch.tokens, batch.mask.long(), batch.types).cpu()
        labels = pairs.labels[batch.pair_indices]
        evaluated = class_losses(logits, labels, model.classes, pairs.classes)
        losses[batch.pair_indices] = evaluated.losses
        correct[batch.pair_indices] = evaluated.correct
    return ClassLosses(losses, correct)
