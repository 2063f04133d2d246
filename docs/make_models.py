"""Which architectures load, and that they are cut right: writes docs/models.md.

    python docs/make_models.py              all of them, minutes
    python docs/make_models.py llama t5     only these, to the screen

Each architecture is made tiny and random, saved as transformers saves it, and loaded as any checkpoint is. Then its
residual streams are compared with plain transformers, and every cut with the full pass. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ThinkalikeError
from thinkalike.models import EMBED, FrozenModel, load_model, train_tokenizer
from thinkalike.models.surgery import captured_output

HERE = Path(__file__).parent
ROWS, TOKENS, VOCABULARY, LAYERS = 2, 48, 320, 4
CLOSE = 1e-4  # the largest difference, relative to the largest entry

# in the names that most configurations use, or translate
SIZES = {
    "hidden_size": 32, "num_hidden_layers": LAYERS, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8,
    "intermediate_size": 64, "max_position_embeddings": 64,
}  # fmt: skip
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 32, "num_experts": 4, "num_local_experts": 4}
PADDED = {"pad_token_id": 0}
WINDOW = {"sliding_window": 8}
LATE = ("mamba", "mamba2", "falcon_mamba", "rwkv")  # their hidden states begin after the first block
STATE_SPACE = {"state_size": 8, "n_groups": 2, "chunk_size": 16}


@dataclass(frozen=True)
class Architecture:
    """An architecture by its `model_type`, with the sizes that the common ones do not cover.

    Attributes:
        kind: the transformers class that makes it: an auto class.
        sizes: further ones; None takes a common one away.
        side: of an encoder-decoder.
    """

    model_type: str
    kind: str = "AutoModelForCausalLM"
    sizes: Mapping[str, Any] = field(default_factory=dict)
    side: str | None = None

    @property
    def name(self) -> str:
        """What the table calls it."""
        extra = f" ({self.side})" if self.side else " (classifier)" if "Sequence" in self.kind else ""
        return f"{self.model_type}{extra}"


def _decoders() -> Iterator[Architecture]:
    special: dict[str, dict[str, Any]] = {
        "gemma2": WINDOW, "gemma3_text": {**WINDOW, "sliding_window_pattern": 2}, "mistral": WINDOW,
        "qwen2": {**WINDOW, "use_sliding_window": True, "max_window_layers": 2}, "olmo3": WINDOW, "cohere2": WINDOW,
        "gpt_oss": {**WINDOW, **EXPERTS}, "starcoder2": WINDOW, "phi3": {**WINDOW, "pad_token_id": 0},
        "gpt_neo": {"attention_types": [[["global", "local"], 2]], "window_size": 8, "num_layers": LAYERS},
        "mixtral": EXPERTS, "qwen3_moe": EXPERTS, "olmoe": EXPERTS, "granitemoe": EXPERTS, "qwen2_moe": EXPERTS,
        "mamba2": {**STATE_SPACE, "num_heads": 8}, "mamba": {"state_size": 8},
        "falcon_mamba": {"state_size": 8},
        "falcon_h1": {"mamba_d_ssm": 64, "mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16},
        "bamba": {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8, "mamba_chunk_size": 16, "attn_layer_indices": [1, 3]},
        "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 2, "use_mamba_kernels": False, "mamba_d_state": 8},
        "zamba2": {"mamba_d_state": 8, "n_mamba_heads": 8, "mamba_headdim": 8, "mamba_ngroups": 1, "chunk_size": 16, "hybrid_layer_ids": [1, 3], "layers_block_type": ["mamba", "hybrid", "mamba", "hybrid"], "num_mem_blocks": 1},
        "nemotron_h": {"mamba_num_heads": 8, "mamba_head_dim": 8, "ssm_state_size": 8, "n_groups": 2, "chunk_size": 16, "hybrid_override_pattern": "M*-M"},
        "recurrent_gemma": {"attention_window_size": 8, "lru_width": 32, "block_types": ["recurrent", "attention"]},
        "deepseek_v3": {"head_dim": None, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "n_group": 2, "topk_group": 1, "kv_lora_rank": 16, "q_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 8, "first_k_dense_replace": 1},
        "llama4_text": {**EXPERTS, "attention_chunk_size": 16, "intermediate_size_mlp": 64},
        "lfm2": {"full_attn_idxs": [1, 3], "block_ff_dim": 64},
        "qwen3_next": {**EXPERTS, "linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "shared_expert_intermediate_size": 32},
        "opt": {"ffn_dim": 64, "word_embed_proj_dim": 16}, "xglm": {"ffn_dim": 64}, "rwkv": {"attention_hidden_size": 32, "rescale_every": 2},
        "gptj": {"rotary_dim": 4}, "codegen": {"rotary_dim": 4, "n_positions": 64, "n_ctx": 64},
        "falcon": {"head_dim": None, "num_kv_heads": 2, "new_decoder_architecture": True}, "mpt": {"max_seq_len": 64},
        "xlnet": {"d_inner": 64, "max_position_embeddings": None, "d_head": 8}, "ctrl": {"dff": 64}, "persimmon": {"num_key_value_heads": None}, "glm": PADDED, "glm4": PADDED, "smollm3": PADDED,
    }  # fmt: skip
    plain = (
        "apertus", "arcee", "biogpt", "bloom", "cohere", "diffllama", "ernie4_5", "exaone4", "gemma", "glm", "glm4",
        "gpt2", "gpt_bigcode", "gpt_neox", "granite", "helium", "llama", "nemotron", "olmo", "olmo2", "openai-gpt",
        "phi", "qwen3", "seed_oss", "smollm3", "stablelm", "hunyuan_v1_dense", "gpt_neox_japanese",
    )  # fmt: skip
    for model_type in sorted({*special, *plain}):
        yield Architecture(model_type, sizes=special.get(model_type, {}))


def _encoders() -> Iterator[Architecture]:
    special: dict[str, dict[str, Any]] = {
        "modernbert": {**PADDED, "local_attention": 8, "global_attn_every_n_layers": 2},
        "electra": {"embedding_size": 16},
        "roberta": {"max_position_embeddings": 66, "type_vocab_size": 1},
        "xlm-roberta": {"max_position_embeddings": 66, "type_vocab_size": 1},
        "camembert": {"max_position_embeddings": 66, "type_vocab_size": 1},
        "deberta-v2": {"relative_attention": True, "position_buckets": 8, "norm_rel_ebd": "layer_norm", "pos_att_type": ["p2c", "c2p"], "share_att_key": True, "type_vocab_size": 0},
        "deberta": {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "type_vocab_size": 0},
        "distilbert": {"dim": 32, "hidden_dim": 64, "n_heads": 4, "n_layers": LAYERS},
        "albert": {"embedding_size": 16}, "bert": {}, "mpnet": {}, "roformer": {"embedding_size": 32},
    }  # fmt: skip
    for model_type, sizes in sorted(special.items()):
        yield Architecture(model_type, "AutoModelForMaskedLM", sizes)
    for model_type in ("bert", "deberta-v2", "distilbert", "electra", "modernbert", "roberta"):
        yield Architecture(model_type, "AutoModelForSequenceClassification", {**special[model_type], "num_labels": 3})


def _both() -> Iterator[Architecture]:
    sizes: dict[str, dict[str, Any]] = {
        "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": LAYERS, "num_decoder_layers": LAYERS - 1, "num_heads": 4},
        "bart": {"d_model": 32, "encoder_layers": LAYERS - 1, "decoder_layers": LAYERS, "encoder_ffn_dim": 64,
                 "decoder_ffn_dim": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4},
    }  # fmt: skip
    for model_type, own in sizes.items():
        for side in ("encoder", "decoder", None):
            yield Architecture(model_type, "AutoModelForSeq2SeqLM", own, side)


ARCHITECTURES = {each.name: each for each in (*_decoders(), *_encoders(), *_both())}


def write(architecture: Architecture, folder: Path) -> None:
    """Write a tiny random checkpoint with larger weights than an initialisation has, so that every block matters."""
    import transformers

    default = transformers.AutoConfig.for_model(architecture.model_type)
    sizes = {key: value for key, value in SIZES.items() if hasattr(default, key)} | dict(architecture.sizes)
    sizes = {key: value for key, value in sizes.items() if value is not None}
    shape = transformers.AutoConfig.for_model(architecture.model_type, vocab_size=VOCABULARY, **sizes)
    torch.manual_seed(0)
    module = getattr(transformers, architecture.kind).from_config(shape)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() > 1 and "embed" not in name:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    module.save_pretrained(folder)
    tokenizer().save_pretrained(folder)


def tokenizer() -> Any:
    """Return a small tokenizer; that it fits no model does not matter here."""
    words = [" ".join(f"w{number * factor % 97}" for number in range(200)) for factor in range(1, 20)]
    return train_tokenizer(words, VOCABULARY - 20, cls_sep=True)


def check(architecture: Architecture, folder: Path) -> str:
    """Return what was found of an architecture: its blocks, or in one line why it is refused.

    Raises:
        AssertionError: it loads, and something is wrong.
    """
    write(architecture, folder)
    classes = {"classes": ["entailment", "neutral", "contradiction"]} if "Sequence" in architecture.kind else {}
    try:
        model = load_model(ModelConfig(name="tiny", path=str(folder), side=architecture.side, **classes))
    except ThinkalikeError as error:
        assert "\n" not in str(error), error
        return f"refused: {error}"
    tokens = torch.randint(5, VOCABULARY - 20, (ROWS, min(TOKENS, model.context)))
    _check_states(model, architecture, folder, tokens)
    if model.predicts != "states":
        _check_cuts(model, tokens)
    return f"`{model.family.blocks}`, {model.n_layers} blocks of {model.d_model}"


def _check_states(model: FrozenModel, architecture: Architecture, folder: Path, tokens: torch.Tensor) -> None:
    """Compare every residual stream with what transformers says by itself, and the last one with a hook."""
    import transformers

    plain = getattr(transformers, architecture.kind).from_pretrained(folder).eval()
    ours = model.residuals(tokens, [EMBED, *range(model.n_layers)])
    seen: dict[int, torch.Tensor] = {}
    root = plain.get_encoder() if architecture.side == "encoder" else plain
    blocks = list(root.get_submodule(model.family.blocks.removeprefix("both.")).children())
    more = {"decoder_input_ids": tokens} if architecture.side else {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for layer, block in enumerate(blocks):
            hooks.enter_context(captured_output(block, layer, seen))
        output = plain(tokens, output_hidden_states=True, use_cache=False, **more)
    for layer, state in enumerate(ours[1:]):
        _close(state, seen[layer], f"layer {layer}")
    reported = output.get(f"{architecture.side}_hidden_states" if architecture.side else "hidden_states")
    assert len(reported) == len(ours), f"transformers reports {len(reported)} hidden states"
    first = int(architecture.model_type in LATE)
    if architecture.model_type == "rwkv":
        return  # it halves the stream every few blocks, and reports what comes after
    for number, (state, expected) in enumerate(zip(ours[first:-1], reported[: -1 - first], strict=True)):
        _close(state, expected, f"hidden state {number}")


def _check_cuts(model: FrozenModel, tokens: torch.Tensor) -> None:
    """Compare the tail after every head with the full pass, and see that gradients come through."""
    full = model.full(tokens)
    for layer in (EMBED, *range(model.n_layers)):
        state = model.head(tokens, layer).detach().requires_grad_()
        start = 0 if layer == EMBED else int(layer) + 1
        last = model.advance(state, start, model.n_layers)
        joined = model.finish(last) if model.predicts == "next" else model.output(last)
        _close(joined, full, f"the tail after {layer}")
        joined.square().sum().backward()
        assert state.grad is not None and state.grad.isfinite().all() and state.grad.abs().sum() > 0, layer


def _close(ours: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    error = float((ours - expected).abs().max() / expected.abs().max())
    assert error <= CLOSE, f"{what} differs by {error:.1e}"


def main() -> None:
    """Check architectures, and write the page or print what was found."""
    names = sys.argv[1:]
    lines = []
    for name in names or ARCHITECTURES:
        with tempfile.TemporaryDirectory() as folder:
            try:
                found = check(ARCHITECTURES[name], Path(folder))
            except Exception as error:
                found = f"WRONG: {type(error).__name__}: {str(error)[:300]}"
            found = found.replace(folder, "FOLDER")
        print(f"{name}: {found}", flush=True)
        lines.append((name, found))


if __name__ == "__main__":
    main()
