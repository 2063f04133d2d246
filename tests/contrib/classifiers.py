"""Classifiers of pairs of texts that agree about as well as trained ones, and pairs to ask them."""

from functools import cache

import pandas as pd
import torch

import tiny
from thinkalike.config.parts import model_settings
from thinkalike.contrib.populations.pair_templates import nli_challenge, nli_training
from thinkalike.contrib.populations.pairs import HANS_CLASSES, MNLI_CLASSES, Pairs
from thinkalike.measures import CKA
from thinkalike.models.minis import train_tokenizer

THREE = ["contradiction", "entailment", "neutral"]
PAIR_BLOCKS, CONTEXT = 2, 64  # of the classifiers that `write_base` makes


def local(folder, classes=None, **options):
    return model_settings(name="local", path=str(folder), classes=classes, **options)


def random_pairs(rows=5, length=24):
    """Tokens, mask and types of padded pairs of texts."""
    lengths = torch.arange(rows) * 3 % (length // 2) + length // 2
    places = torch.arange(length)
    mask = (places < lengths[:, None]).long()
    types = ((places >= lengths[:, None] // 2) & mask.bool()).long()
    return torch.randint(1, len(tiny.tokenizer()), (rows, length)) * mask, mask, types


def loaded(folder):
    """The classifier, by transformers alone."""
    import transformers

    return transformers.BertForSequenceClassification.from_pretrained(folder)


@torch.no_grad()
def write_sibling(folder, base, seed, noise=0.2):
    """The classifier `base` with noise on its weights, which takes every class for some texts."""
    model, generator = loaded(base), torch.Generator().manual_seed(seed)
    for weight in model.parameters():
        weight += noise * weight.std(correction=0) * torch.randn(weight.shape, generator=generator)
    model.classifier.bias -= logits_of(model, nli_training(60))[0].mean(0)
    model.save_pretrained(folder)
    pair_tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def logits_of(model, pairs):
    tokenizer = pair_tokenizer()
    inputs = tokenizer(
        pairs.premises, pairs.hypotheses, truncation="longest_first", max_length=CONTEXT,
        return_token_type_ids=True, padding=True, return_tensors="pt",
    )  # fmt: skip
    return model.eval()(**inputs).logits, inputs


@torch.no_grad()
def cka_of_transformers(members, pairs, batch, first_only=False, count=None):
    """CKA of every two models at each block, on the tokens of the pairs in the order that the job has them.

    Args:
        batch: rows.
        first_only: of the tokens of a pair.
        count: of the pairs.
    """
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0)).tolist()[:count]
    chosen, rows = pairs.take(order), []
    for folder in members:
        model = loaded(folder)
        _, inputs = logits_of(model, chosen)
        kept = inputs["attention_mask"].bool()
        if first_only:
            kept[:, 1:] = False
        states = model.bert(**inputs, output_hidden_states=True).hidden_states[1:]
        rows.append([state[kept] for state in states])
    metrics = [CKA(len(members), len(members)) for _ in range(PAIR_BLOCKS)]
    for start in range(0, len(rows[0][0]) - batch + 1, batch):
        for block, metric in enumerate(metrics):
            part = [model[block][start : start + batch] for model in rows]
            metric.update(part, part)
    return torch.stack([metric.compute().with_bias for metric in metrics], -1)


def relabelled(pairs, model):
    """The same texts with the labels that a classifier gives them, so that it is right."""
    names = [model.config.id2label[number] for number in logits_of(model, pairs)[0].argmax(-1).tolist()]
    if pairs.classes == HANS_CLASSES:
        names = [name if name == "entailment" else "non-entailment" for name in names]
    labels = torch.tensor([pairs.classes.index(name) for name in names])
    return Pairs(pairs.premises, pairs.hypotheses, labels, pairs.classes, pairs.heuristics, pairs.subcases)


def write_base(folder, classes):
    return write_sibling(folder, tiny.write_classifier(folder, classes, layers=PAIR_BLOCKS), 0, noise=0)


def of_the_hub(rows) -> pd.DataFrame:
    """The table of a data set of the hub: rows of premise, hypothesis and label; of HANS also heuristic, subcase."""
    names = ["premise", "hypothesis", "label", "heuristic", "subcase"]
    frame = pd.DataFrame(rows, columns=names[: len(rows[0])])
    classes = HANS_CLASSES if len(rows[0]) > 3 else MNLI_CLASSES
    return frame.assign(label=[classes.index(name) if name in classes else -1 for name in frame["label"]], genre="x")


@cache
def pair_tokenizer(vocabulary: int = 300):
    """One that writes pairs as BERT's does, and knows the words of the templates."""
    pairs = nli_training(120), nli_challenge(120)
    return train_tokenizer([text for part in pairs for text in (*part.premises, *part.hypotheses)], vocabulary, True)
