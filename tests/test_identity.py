"""Identity stitches of a population: what weights moved by hand give, to the bit, for about half the passes."""

import copy

import pytest
import torch

import tiny
from classifiers import THREE, local
from classifiers import random_pairs as pairs
from thinkalike.contrib.populations.class_losses import class_losses, identity_stitches
from thinkalike.models.families import EMBED, after
from thinkalike.models.load import load_model

CUTS = [EMBED, *range(tiny.LAYERS)]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    root = tmp_path_factory.mktemp("population")
    return [load_model(local(tiny.write_classifier(root / str(seed), seed=seed), THREE)) for seed in range(3)]


@pytest.fixture
def batch():
    tokens, mask, types = pairs(rows=6)
    return {"tokens": tokens, "labels": torch.randint(3, (6,)), "wanted": THREE, "mask": mask, "types": types}


def transplanted(source, target, cut):
    """A whole classifier whose embeddings and blocks up to the cut are those of another."""
    module = copy.deepcopy(target.module)
    module.bert.embeddings = source.module.bert.embeddings
    for layer in range(after(cut)):
        module.bert.encoder.layer[layer] = source.module.bert.encoder.layer[layer]
    return module


@torch.no_grad()
def by_hand(models, batch, cuts=CUTS):
    found = []
    for source in models:
        for target in models:
            for cut in cuts:
                module = transplanted(source, target, cut)
                logits = module(batch["tokens"], attention_mask=batch["mask"], token_type_ids=batch["types"]).logits
                found.append(class_losses(logits, batch["labels"], target.classes, batch["wanted"]))
    shape = (len(models), len(models), len(cuts))
    return [torch.stack(parts).unflatten(0, shape) for parts in zip(*found, strict=True)]


def test_every_stitch_is_the_transplanted_model_to_the_bit(models, batch):
    ours, theirs = identity_stitches(models, **batch), by_hand(models, batch)
    assert torch.equal(ours.losses, theirs[0])
    assert torch.equal(ours.predicted == batch["labels"], theirs[1])
    assert ours.predicted.dtype == torch.int8
    spread = ours.losses.std(0)
    assert (spread[:, 1:] > 1e-3).all()  # control: it matters whose blocks the first ones are


def test_sources_together_give_the_same(models, batch):
    alone, together = identity_stitches(models, **batch), identity_stitches(models, **batch, at_once=2)
    torch.testing.assert_close(together.losses, alone.losses, atol=1e-5, rtol=0)


def test_a_target_reads_its_logits_in_its_own_order(models, batch):
    first, second = models[0], copy.copy(models[1])
    second.classes = tuple(reversed(THREE))
    ours, plain = (identity_stitches([first, other], **batch).losses for other in (second, models[1]))
    assert torch.equal(ours[:, 0], plain[:, 0])
    assert (ours[:, 1] != plain[:, 1]).any()


def test_the_predicted_class_is_that_of_the_data(models, batch):
    """Whatever the order of a model's own classes, and where the data has no word for two of them."""
    own = {"contradiction": "non-entailment", "entailment": "entailment", "neutral": "non-entailment"}
    for wanted in (THREE, ["neutral", "contradiction", "entailment"], ["entailment", "non-entailment"]):
        labels = batch["labels"] % len(wanted)
        found = identity_stitches(models, **batch | {"labels": labels, "wanted": wanted}).predicted
        for number, model in enumerate(models):
            logits = model.full(batch["tokens"], batch["mask"], batch["types"])
            names = [THREE[place] for place in logits.argmax(-1).tolist()]
            names = [own[name] if len(wanted) == 2 else name for name in names]
            assert [wanted[place] for place in found[number, number, 0].tolist()] == names


def block_passes(models, run):
    """Rows that went through a block, as multiples of the batch."""
    rows = []
    inside = [block.intermediate for model in models for block in model.blocks]  # a block that is passed over rests
    handles = [part.register_forward_hook(lambda _, args, __: rows.append(len(args[0]))) for part in inside]
    run()
    for handle in handles:
        handle.remove()
    return sum(rows) / 6


def test_tails_of_cached_states_need_the_passes_that_they_should(models, batch):
    depth, m = tiny.LAYERS, len(models)
    ours = block_passes(models, lambda: identity_stitches(models, **batch, at_once=3))
    assert ours == m * depth + m * m * depth * (depth + 1) / 2
