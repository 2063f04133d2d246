"""Models: from a name in the configuration to a FrozenModel."""

from thinkalike.models.classifiers import new_classifier
from thinkalike.models.frozen import EMBED, FrozenModel
from thinkalike.models.load import content as checkpoint_fingerprint
from thinkalike.models.load import head_dimensions, load_model, pick_device
from thinkalike.models.minis import ASSETS, build_mini, save_mini
from thinkalike.models.randomised import randomised
from thinkalike.models.tokenizers import same_vocabulary, train_tokenizer

__all__ = [
    "ASSETS",
    "EMBED",
    "FrozenModel",
    "build_mini",
    "checkpoint_fingerprint",
    "head_dimensions",
    "load_model",
    "new_classifier",
    "pick_device",
    "randomised",
    "same_vocabulary",
    "save_mini",
    "train_tokenizer",
]
