"""Models: from a name in the configuration to a FrozenModel."""

from thinkalike.models.checkpoints.classifiers import new_classifier
from thinkalike.models.checkpoints.minis import ASSETS, build_mini, card_text, save_mini, unknown_sizes
from thinkalike.models.checkpoints.tokenizers import check_alignable, same_vocabulary, train_tokenizer
from thinkalike.models.controls import fresh, perturbed, randomised, variant
from thinkalike.models.families import CLASSIFIER, FAMILIES, Family, family_named
from thinkalike.models.flops import Operations, operations
from thinkalike.models.foresight import Outline, check_models, outline
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.labels import label, told_apart
from thinkalike.models.load import (
    checkpoint_fingerprint,
    head_dimensions,
    load_groups,
    load_model,
    load_models,
    pick_device,
)
from thinkalike.models.shapes.peaks import PEAKS, PRECISIONS, peak_of, precision_of
from thinkalike.models.shapes.shape import Shape, new_shape, shape_of
from thinkalike.models.sites import EMBED, Layer, after
from thinkalike.models.sources import StateSource
from thinkalike.tokenizers import tokenizer_fingerprint

__all__ = [
    "ASSETS",
    "CLASSIFIER",
    "EMBED",
    "FAMILIES",
    "PEAKS",
    "PRECISIONS",
    "Family",
    "FrozenModel",
    "Layer",
    "Operations",
    "Outline",
    "Shape",
    "StateSource",
    "after",
    "build_mini",
    "card_text",
    "check_alignable",
    "check_models",
    "checkpoint_fingerprint",
    "family_named",
    "fresh",
    "head_dimensions",
    "label",
    "load_groups",
    "load_model",
    "load_models",
    "new_classifier",
    "new_shape",
    "operations",
    "outline",
    "peak_of",
    "perturbed",
    "pick_device",
    "precision_of",
    "randomised",
    "same_vocabulary",
    "save_mini",
    "shape_of",
    "tokenizer_fingerprint",
    "told_apart",
    "train_tokenizer",
    "unknown_sizes",
    "variant",
]
