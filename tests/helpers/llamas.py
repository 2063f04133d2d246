"""A tiny random Llama in memory, and changes of it that no weight shows; a fresh process imports little beside them."""

import torch
import transformers

import tiny


def small_llama():
    shape = {"vocab_size": len(tiny.tokenizer()), "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape, num_attention_heads=4))
    tiny.enlarge(model)
    return model.eval()


def replaced_forward(model):
    forward = model.model.layers[0].mlp.forward
    model.model.layers[0].mlp.forward = lambda states: 2 * forward(states)


def hooked(model, factor=1.5):
    model.model.layers[0].mlp.register_forward_hook(lambda _, __, output: factor * output)
