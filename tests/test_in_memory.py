"""A model of transformers in memory loads as the folder does that it would be saved to."""

import pytest
import torch

import tiny
from thinkalike import load_model
from thinkalike.errors import ConfigError, ModelError


def module_of(folder, kind="AutoModelForCausalLM"):
    import transformers

    return getattr(transformers, kind).from_pretrained(folder, dtype=torch.float32)


@pytest.mark.parametrize("family", tiny.FAMILIES)
def test_it_is_the_model_of_its_folder(family, checkpoints):
    module = module_of(checkpoints[family], "AutoModelForMaskedLM" if family == "bert" else "AutoModelForCausalLM")
    ours, saved = load_model(module, tiny.tokenizer(), name="mine"), load_model(checkpoints[family])
    assert ours.fingerprint() == saved.fingerprint()
    assert (ours.name, ours.revision, ours.context) == ("mine", "in memory", saved.context)
    assert ours.describe()["weights"] == saved.describe()["weights"]
    tokens = torch.randint(len(tiny.tokenizer()), (2, 16))
    torch.testing.assert_close(ours.head(tokens, 1), saved.head(tokens, 1), atol=0, rtol=0)


def test_training_goes_on_and_changes_only_the_original(checkpoints):
    module = module_of(checkpoints["gpt2"]).train()
    before = load_model(module, tiny.tokenizer())
    fingerprint = before.fingerprint()
    assert module.training
    assert all(weight.requires_grad for weight in module.parameters())
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight.mul_(2)
    assert before.fingerprint() == fingerprint
    assert load_model(module, tiny.tokenizer()).fingerprint() != fingerprint


def test_its_name_and_settings(checkpoints):
    module = module_of(checkpoints["gpt2"])
    assert load_model(module, tiny.tokenizer()).name == checkpoints["gpt2"].name
    model = load_model(module.double(), tiny.tokenizer(), "mine", context=32)
    assert (model.name, model.context, model.dtype) == ("mine", 32, torch.float64)
    assert load_model(module, tiny.tokenizer(), dtype=torch.float32).dtype == torch.float32


@pytest.mark.parametrize("side", ["encoder", "decoder"])
def test_a_side_of_an_encoder_decoder(side):
    import transformers

    sizes = {"vocab_size": len(tiny.tokenizer()), "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
    module = transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, decoder_start_token_id=0))
    tiny.enlarge(module)
    assert load_model(module, tiny.tokenizer(), side=side).n_layers == 2
    with pytest.raises(ModelError, match=r"T5ForConditionalGeneration is an encoder-decoder: choose model\.side"):
        load_model(module, tiny.tokenizer())


def test_what_is_no_language_model_in_memory_is_refused(checkpoints):
    module, cutter = module_of(checkpoints["gpt2"]), tiny.tokenizer()
    with pytest.raises(
        TypeError, match="PreTrainedModel of transformers and its tokenizer, not GPT2LMHeadModel and No"
    ):
        load_model(module)
    with pytest.raises(TypeError, match="not Linear and"):
        load_model(torch.nn.Linear(2, 2), cutter)
    with pytest.raises(ConfigError, match=r"model\.revision does not apply to a model passed in memory"):
        load_model(module, cutter, revision="main")
    with pytest.raises(ModelError, match=r"GPT2Model has no head that is known; give one of .*GPT2LMHeadModel"):
        load_model(module.transformer, cutter)
    with torch.no_grad():
        module.transformer.h[0].mlp.c_fc.weight[0, 0] = float("nan")
    with pytest.raises(ModelError, match="not finite"):
        load_model(module, cutter)
