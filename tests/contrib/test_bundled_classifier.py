"""The body that is shipped for classifiers of pairs says how it was taught, and makes classifiers."""

import pytest
import torch
from safetensors.torch import load_file

from conftest import composed
from installed_package import TAUGHT, card, installed, run  # noqa: F401 (a fixture)
from thinkalike.contrib.populations.new_classifier import new_classifier
from thinkalike.models.checkpoints import ASSETS


def test_a_body_that_was_taught_says_how_and_makes_classifiers():
    facts, text = card(TAUGHT), (ASSETS / TAUGHT / "README.md").read_text()
    assert facts["training"]["command"] in text
    assert facts["accuracy"]["heldout_accuracy"] > 0.9
    assert f"| challenge accuracy | {facts['accuracy']['challenge_accuracy']:.4f} |" in text
    module, tokenizer = new_classifier(composed(f"model={TAUGHT}").model, ["entailment", "neutral", "contradiction"])
    assert module.config.initializer_range == pytest.approx(0.02)
    assert float(module.classifier.weight.std()) == pytest.approx(0.02, rel=0.3)
    shipped = load_file(ASSETS / TAUGHT / "model.safetensors")
    assert torch.equal(module.bert.pooler.dense.weight, shipped["pooler.dense.weight"].float())
    assert len(tokenizer) == len(shipped["embeddings.word_embeddings.weight"])


@pytest.mark.ci_slow
@pytest.mark.timeout(900)
def test_a_wheel_has_the_experiments(installed, tmp_path):  # noqa: F811
    done = run(installed, "analyze", "experiment=salle2024/table_s1", "scale=mini", cwd=tmp_path)
    assert "holds" in done.stdout
