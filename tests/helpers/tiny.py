"""Tiny random models in the formats of the real ones, and text to run them on."""

import json
import random
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

FAMILIES = ("gpt_neox", "gpt2", "mamba", "bert")
LAYERS = 4
MINIS = Path(__file__).parents[2] / "src" / "thinkalike" / "assets"


def document(seed: int, words: int = 400) -> str:
    """Random words of random letters, different for every seed."""
    chance = random.Random(seed)
    return " ".join("".join(chance.choices("abcdefgh", k=chance.randint(1, 4))) for _ in range(words))


@cache
def tokenizer(vocabulary: int = 300):
    from thinkalike.models.minis import train_tokenizer

    return train_tokenizer([document(seed) for seed in range(20)], vocabulary)


def token_rows(tokens: torch.Tensor, documents: torch.Tensor | None = None):
    """Rows of tokens as a corpus has them, by default of one document."""
    from thinkalike.data.rows import TokenRows

    return TokenRows(tokens, torch.zeros_like(tokens) if documents is None else documents)


def local(path: Path, **settings):
    from thinkalike.config import ModelConfig

    return ModelConfig(name="local", path=str(path), **settings)


def _model(family: str, hidden_size: int, seed: int):
    import transformers as hf

    size = {"vocab_size": len(tokenizer()), "num_hidden_layers": LAYERS, "hidden_size": hidden_size}
    heads = {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    torch.manual_seed(seed)
    if family == "gpt_neox":
        return hf.GPTNeoXForCausalLM(hf.GPTNeoXConfig(**size, **heads))
    if family == "gpt2":
        config = hf.GPT2Config(vocab_size=len(tokenizer()), n_layer=LAYERS, n_embd=32, n_head=4, n_positions=64)
        return hf.GPT2LMHeadModel(config)
    if family == "mamba":
        return hf.MambaForCausalLM(hf.MambaConfig(**size, state_size=8))
    return hf.BertForMaskedLM(hf.BertConfig(**size, **heads))


def write_checkpoint(family: str, folder: Path, hidden_size: int = 32, seed: int = 1) -> Path:
    """A checkpoint as `save_pretrained` writes it, with larger weights than an initialisation has."""
    model = _model(family, hidden_size, seed)
    enlarge(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


@torch.no_grad()
def enlarge(model: torch.nn.Module) -> None:
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(3)  # so that every block matters


def write_classifier(folder: Path, classes: Sequence[str] | int = 3, seed: int = 1, *, layers: int = LAYERS) -> Path:
    """A BERT that tells classes of texts apart, untrained.

    Args:
        classes: as its config.json names them, or only how many.
    """
    import transformers as hf

    size = {"vocab_size": len(tokenizer()), "num_hidden_layers": layers, "hidden_size": 32}
    heads = {"num_attention_heads": 4, "intermediate_size": 64, "max_position_embeddings": 64}
    names = {"num_labels": classes} if isinstance(classes, int) else {"id2label": dict(enumerate(classes))}
    torch.manual_seed(seed)
    model = hf.BertForSequenceClassification(hf.BertConfig(**size, **heads, **names))
    enlarge(model)
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


ARCHITECTURE = {
    "d_model": 32, "n_layers": LAYERS, "n_heads": 4, "d_head": 8, "d_mlp": 64, "n_ctx": 64,
    "act_fn": "solu_ln", "normalization_type": "LN",
}  # fmt: skip


def native(seed: int = 0, vocabulary: int | None = None, **changes):
    """A random module of the family that minis and legacy models have."""
    from thinkalike.models.minis import build_mini

    return build_mini({**ARCHITECTURE, **changes}, vocabulary or len(tokenizer()), seed)


def frozen(seed: int = 0, **changes):
    """The same as a FrozenModel."""
    from thinkalike.models.families import FAMILIES as TABLE
    from thinkalike.models.frozen import FrozenModel

    return FrozenModel(native(seed, **changes), TABLE["native"], tokenizer(), name=f"tiny-{seed}", context=64)


def write_mini(folder: Path, seed: int = 0, cutter=None, module=None, **changes) -> Path:
    """A mini's folder, untrained.

    Args:
        cutter: its tokenizer, if that is not `tokenizer()`.
        module: a model of this shape with other weights.
    """
    from thinkalike.models.minis import save_mini

    cutter = cutter or tokenizer()
    config = {"architecture": {**ARCHITECTURE, **changes}, "seed": seed}
    module = module or native(seed, len(cutter), **changes)
    save_mini(folder, module, cutter, config)
    return folder


@cache
def other_tokenizer(vocabulary: int = 330):
    """One that knows other runs of letters than `tokenizer()`, some of them longer."""
    from thinkalike.models.minis import train_tokenizer

    return train_tokenizer([document(seed)[::-1].replace("a", "ab") for seed in range(20)], vocabulary)


def flat(folder: Path) -> Path:
    """The mini of `write_mini`, in which every token has the same states."""
    weights = load_file(write_mini(folder) / "model.safetensors")
    for table in ("pos", "tok_embed"):
        weights[f"{table}.weight"][:] = weights[f"{table}.weight"][0].clone()
    save_file(weights, folder / "model.safetensors")
    return folder


def massive(folder: Path, seed: int = 0) -> Path:
    """The mini of `write_mini`, in which the first token of a row has a massive state."""
    weights = load_file(write_mini(folder, seed) / "model.safetensors")
    weights["pos.weight"][0] += 3000
    save_file(weights, folder / "model.safetensors")
    return folder


def jiggled(module: torch.nn.Module, spread: float = 0.3) -> torch.nn.Module:
    """A module whose weights are moved away from where they start."""
    with torch.no_grad():
        for weight in module.parameters():
            weight.add_(spread * torch.randn_like(weight))
    return module


def recut(checkpoint: Path, folder: Path, cutter) -> Path:
    """A copy of a checkpoint with another tokenizer."""
    shutil.copytree(checkpoint, folder)
    cutter.save_pretrained(folder)
    return folder


def relabelled(folder: Path, seed: int = 0) -> Path:
    """The mini of `write_mini`, in which every token has another number."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    whole = json.loads(tokenizer().backend_tokenizer.to_str())
    order = torch.randperm(len(tokenizer()), generator=torch.Generator().manual_seed(1)).tolist()
    whole["model"]["vocab"] = {token: order[number] for token, number in whole["model"]["vocab"].items()}
    for token in whole["added_tokens"]:
        token["id"] = order[token["id"]]
    module = native(seed)
    with torch.no_grad():
        for table in (module.tok_embed, module.head):
            for weight in table.parameters():
                weight[order] = weight.clone()
    mark = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    cutter = PreTrainedTokenizerFast(tokenizer_object=Tokenizer.from_str(json.dumps(whole)), **mark)
    return write_mini(folder, seed, cutter, module)


def write_legacy(folder: Path, tokenizer_name: str, seed: int = 0, **changes) -> torch.nn.Module:
    """The layout of the SoLU and GeLU models on the hub; returns the module with the same weights."""
    shape = {**ARCHITECTURE, **changes}
    module = native(seed, **changes)
    heads, d, width = shape["n_heads"], shape["d_model"], shape["d_head"]
    old = {
        "embed.W_E": module.tok_embed.weight,
        "pos_embed.W_pos": module.pos.weight,
        "ln_final.w": module.ln_out.weight,
        "ln_final.b": module.ln_out.bias,
        "unembed.W_U": module.head.weight.T,
    }
    for number, block in enumerate(module.layers):
        name = f"blocks.{number}."
        for norm in ("ln1", "ln2"):
            old[f"{name}{norm}.w"], old[f"{name}{norm}.b"] = getattr(block, norm).weight, getattr(block, norm).bias
        for part in "qkv":
            linear = getattr(block.attn, part)
            old[f"{name}attn.W_{part.upper()}"] = linear.weight.view(heads, width, d).transpose(1, 2)
            old[f"{name}attn.b_{part.upper()}"] = linear.bias.view(heads, width)
        old[f"{name}attn.W_O"] = block.attn.o.weight.T.reshape(heads, width, d)
        old[f"{name}attn.b_O"] = block.attn.o.bias
        old[f"{name}mlp.W_in"], old[f"{name}mlp.b_in"] = block.mlp.fc_in.weight.T, block.mlp.fc_in.bias
        old[f"{name}mlp.W_out"], old[f"{name}mlp.b_out"] = block.mlp.fc_out.weight.T, block.mlp.fc_out.bias
        if block.mlp.ln is not None:
            old[f"{name}mlp.ln.w"], old[f"{name}mlp.ln.b"] = block.mlp.ln.weight, block.mlp.ln.bias
    folder.mkdir(parents=True)
    torch.save({key: weight.detach().clone() for key, weight in old.items()}, folder / "tiny_final.pth")
    config = {**shape, "d_vocab": len(tokenizer()), "attn_only": False, "normalization": shape["normalization_type"]}
    (folder / "config.json").write_text(json.dumps({**config, "tokenizer_name": tokenizer_name}))
    return module.eval()


def write_llama(folder: Path, kind: str = "F32", **sizes) -> Path:
    """A Llama, with its weights as they are after a quantisation of GGUF, as `save_pretrained` writes it."""
    import transformers as hf

    size = {"vocab_size": len(tokenizer()), "num_hidden_layers": 2, "hidden_size": 256, "intermediate_size": 256}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64, "rope_theta": 5e4}
    torch.manual_seed(1)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**{**size, **heads, **sizes}, tie_word_embeddings=False))
    enlarge(model)
    for weight in (weight for weight in model.parameters() if weight.dim() > 1 and kind != "F32"):
        import gguf

        packed = gguf.quants.quantize(weight.detach().numpy(), gguf.GGMLQuantizationType[kind])
        weight.data = torch.from_numpy(gguf.quants.dequantize(packed, gguf.GGMLQuantizationType[kind]).copy())
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def write_gguf(
    folder: Path, file: Path, kind: str = "F32", leave_out: str = "-", tensors: dict | None = None, **fields
) -> Path:
    """The Llama of a folder as llama.cpp's converter writes it: rows of queries and keys in another order.

    Args:
        kind: how its matrices are quantised; its vectors are F32.
        leave_out: the tensor that is not written.
        tensors: the shapes of more tensors, by their names.
        fields: other or more fields, such as {"split.count": 2}; None leaves one out.
    """
    import gguf

    shape, weights = json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    parts = json.loads((folder / "tokenizer.json").read_text())
    tokens = sorted(parts["model"]["vocab"], key=parts["model"]["vocab"].__getitem__)
    usual = {
        "llama.vocab_size": shape["vocab_size"],
        "llama.context_length": shape["max_position_embeddings"],
        "llama.embedding_length": shape["hidden_size"],
        "llama.block_count": shape["num_hidden_layers"],
        "llama.feed_forward_length": shape["intermediate_size"],
        "llama.attention.head_count": shape["num_attention_heads"],
        "llama.attention.head_count_kv": shape["num_key_value_heads"],
        "llama.rope.dimension_count": shape["head_dim"],
        "llama.rope.freq_base": float(shape["rope_parameters"]["rope_theta"]),
        "llama.attention.layer_norm_rms_epsilon": float(shape["rms_norm_eps"]),
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token.startswith("<|") else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in parts["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0,
    }
    writer = gguf.GGUFWriter(file, "llama")
    adding = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for name, value in {**usual, **fields}.items():
        if value is not None:
            adding[type(value)](name, value)
    for name, size in (tensors or {}).items():
        writer.add_tensor(name, torch.ones(size).numpy())
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, shape["num_hidden_layers"])
    for name, weight in weights.items():
        if name == leave_out:
            continue
        heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}.get(name.split(".")[-2])
        if heads:
            weight = weight.view(shape[heads], 2, -1, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)
        quantised = gguf.GGMLQuantizationType[kind if weight.dim() > 1 else "F32"]
        packed = gguf.quants.quantize(weight.contiguous().numpy(), quantised)
        writer.add_tensor(names.get_name(name, (".weight",)), packed, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
