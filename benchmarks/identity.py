"""What identity stitches of a population cost: tails of cached states, beside whole stitched models.

    python benchmarks/identity.py                   10 x 10 random BERTs of 6 layers on one CPU thread, a minute or two
    python benchmarks/identity.py --device cuda

A block pass is one batch through one block; times are medians measured in turn in this one run.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from measuring import options_of
from tail import in_turn
from transformers import BertConfig, BertForSequenceClassification

from thinkalike.contrib.populations.class_losses import class_losses, predicted_classes
from thinkalike.contrib.populations.identity_stitches import IdentityStitches, identity_stitches
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.minis import train_tokenizer

CLASSES = ("contradiction", "entailment", "neutral")
SHAPE = {"hidden_size": 64, "intermediate_size": 256, "num_attention_heads": 4, "max_position_embeddings": 64}


def build(seed: int, layers: int, device: str) -> FrozenModel:
    torch.manual_seed(seed)
    config = BertConfig(vocab_size=1000, num_hidden_layers=layers, num_labels=3, **SHAPE)
    module, tokenizer = BertForSequenceClassification(config).to(device), train_tokenizer(["a few words"], 300)
    return FrozenModel(
        module, FAMILIES["bert_classifier"], tokenizer, name=f"random-{seed}", context=64, classes=CLASSES
    )


def whole_models(
    models: list[FrozenModel], tokens: torch.Tensor, labels: torch.Tensor, mask: torch.Tensor
) -> IdentityStitches:
    """Each pair and cut as one model of its own, from the tokens on."""
    found = []
    for source, target in itertools.product(models, models):
        early, late = source.module.bert, target.module.bert
        own = late.embeddings, late.encoder.layer
        for blocks in range(source.n_layers + 1):
            late.embeddings = early.embeddings
            late.encoder.layer = torch.nn.ModuleList([*early.encoder.layer[:blocks], *own[1][blocks:]])
            logits = target.full(tokens, mask)
            losses = class_losses(logits, labels, target.classes, CLASSES).losses
            found.append((losses, predicted_classes(logits, target.classes, CLASSES)))
            late.embeddings, late.encoder.layer = own
    shape = (len(models), len(models), -1)
    return IdentityStitches(*(torch.stack(parts).cpu().unflatten(0, shape) for parts in zip(*found, strict=True)))


def counted(
    models: list[FrozenModel], run: Callable[[], IdentityStitches], rows: int
) -> tuple[IdentityStitches, float]:
    """Return what a run gives, and how many batches went through a block."""
    seen: list[int] = []
    # parts of blocks, which a block that is passed over does not run
    parts = [block.intermediate for model in models for block in model.blocks]
    handles = [part.register_forward_hook(lambda _, args, __: seen.append(len(args[0]))) for part in parts]
    outcome = run()
    for handle in handles:
        handle.remove()
    return outcome, sum(seen) / rows


def main() -> None:
    options = options_of(__doc__, device="cpu", models=10, layers=6, rows=8, rounds=3)
    torch.set_grad_enabled(False)
    models = [build(seed, options.layers, options.device) for seed in range(options.models)]
    tokens, labels = torch.randint(1000, (options.rows, 32)), torch.randint(3, (options.rows,))
    mask = (torch.arange(32) < torch.randint(16, 33, (options.rows, 1))).long()

    def cached(at_once: int) -> IdentityStitches:
        return identity_stitches(models, tokens, labels, CLASSES, mask=mask, at_once=at_once)

    work: dict[str, Callable[[], IdentityStitches]] = {
        "whole models": lambda: whole_models(models, tokens, labels, mask),
        "cached, one source at a time": lambda: cached(1),
        f"cached, {options.models} at once": lambda: cached(options.models),
    }
    found = {name: counted(models, call, options.rows) for name, call in work.items()}
    medians = in_turn(work, options.rounds, options.device)
    whole, most = found["whole models"]
    print(f"{len(models)} x {len(models)} models of {options.layers} layers, d 64, {options.rows} rows of 32 tokens")
    for name, (outcome, passes) in found.items():
        error, faster = (outcome.losses - whole.losses).abs().max(), medians["whole models"] / medians[name]
        print(
            f"  {name:30s}{passes:6.0f} block passes (1/{most / passes:.2f}){medians[name]:8.2f} s (1/{faster:.2f})"
            f"   losses differ by at most {error:.0e}"
        )


if __name__ == "__main__":
    main()
