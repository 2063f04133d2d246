"""A new classifier is made of a whole body with its tokenizer alone."""

import shutil

import pytest
import torch
from classifiers import THREE

from damaged_weights import DAMAGES, rewrite
from thinkalike.config.parts import model_settings
from thinkalike.contrib.populations.new_classifier import new_classifier
from thinkalike.errors import ModelError


@pytest.fixture
def body(tmp_path, checkpoints):
    return shutil.copytree(checkpoints["bert"], tmp_path / "body")


def made_of(body):
    torch.manual_seed(3)
    return new_classifier(model_settings(name="local", path=str(body)), THREE)[0]


def test_a_whole_body_becomes_a_classifier(body):
    assert made_of(body).num_labels == 3


@pytest.mark.parametrize("damage", DAMAGES)
def test_weights_that_are_not_those_of_config_json_are_refused(body, damage):
    change, said, _ = DAMAGES[damage]
    rewrite(body, lambda weights: change(weights, ".layer.1.", "bert.embeddings.word_embeddings.weight"))
    with pytest.raises(ModelError) as caught:
        made_of(body)
    assert said in str(caught.value)


def test_a_folder_without_a_tokenizer_is_refused(body):
    for path in body.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ModelError) as caught:
        made_of(body)
    assert "has no tokenizer that transformers reads (" in str(caught.value)
