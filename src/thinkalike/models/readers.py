"""Reading language models: checkpoints of transformers, and the legacy layout of TransformerLens."""

from __future__ import annotations

import contextlib
import copy
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.hub import resolved
from thinkalike.models.families import AUTO_CLASSES, DEPTHS, Family
from thinkalike.models.formats import gguf_config, is_gguf, merged
from thinkalike.models.minis import without_hooks
from thinkalike.models.surgery import first_tensor
from thinkalike.models.survey import TOLERANCE, relative_error, sample_tokens, text_config
from thinkalike.models.tokenizers import read_tokenizer
from thinkalike.models.weights import check_fit, check_values, read_weights

# the names that configurations give to the longest row
LENGTHS = ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_sequence_length", "seq_length")


Checkpoint = tuple[Any, Any, int | None]  # the module on its device, the tokenizer, and the longest row, if limited


def read_transformers(
    config: ModelConfig,
    family: Family,
    place: str,
    device: torch.device,
    dtype: torch.dtype,
    adapter: Path | None = None,
) -> Checkpoint:
    """Read a model that `save_pretrained` wrote, with its own tokenizer, from a folder or a repository of the hub.

    It runs as transformers runs it. Only processing=compat goes through TransformerLens's bridge, which computes every
    attention pattern and puts BOS before every text, and GPT-2 and Pythia were not trained with BOS.

    Args:
        adapter: the folder of an adapter that is merged into the model.

    Raises:
        ModelError: weights or the tokenizer are missing, the adapter does not fit, or an encoder-decoder has no
            `model.side`.
    """
    import transformers

    kind = getattr(transformers, AUTO_CLASSES[family.predicts])
    folded = config.processing == "compat"
    if folded and (config.device_map is not None or config.quantization):
        raise ModelError(
            f"{config.called}: model.processing=compat goes with no model.device_map or model.quantization"
        )
    options: dict[str, Any] = {"attn_implementation": "eager"} if folded else placement(config, device)
    if is_gguf(place):
        if config.quantization:
            raise ModelError(
                f"{config.called} is quantised already; leave out model.quantization={config.quantization}"
            )
        options |= {"config": gguf_config(place), "quantization_config": transformers.GgufConfig(dequantize=True)}
    with (
        torch.random.fork_rng(devices=[]),
        patch("transformers.modeling_gguf_pytorch_utils.tqdm", lambda each, **_: each),
    ):
        torch.manual_seed(0)  # a head that nothing reads may be missing: equal checkpoints give equal modules
        module, fit = read_weights(kind, config, place, dtype=dtype, **options)
    needed = module.base_model_prefix if family.predicts == "hidden" else ""
    check_fit(fit, config.called, place, [needed])
    if adapter:
        module = merged(module, adapter, adapter.name)
    tokenizer, longest = read_tokenizer(config, place), longest_row(module)
    if folded:
        from transformer_lens.model_bridge import TransformerBridge

        bridge = TransformerBridge.boot_transformers(
            place, hf_model=module, tokenizer=copy.deepcopy(tokenizer), device="cpu", dtype=dtype
        )
        module = _folded(bridge)
    elif family.predicts == "states":
        module = one_side(module, config)
    return placed(module, options, device, dtype), tokenizer, longest


def read_legacy(config: ModelConfig, place: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a language model in the layout of TransformerLens 1, with the tokenizer that it names.

    Raises:
        ModelError: the logits change when TransformerLens's hooks are taken off.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with _pinned(place, config.revision):
        bridge = TransformerBridge.boot_tl_legacy(place, device="cpu", dtype=dtype)
    module = _folded(bridge) if config.processing == "compat" else _without_hooks(bridge, config.called)
    return module.to(device=device, dtype=dtype), bridge.tokenizer, bridge.cfg.n_ctx


@contextlib.contextmanager
def _pinned(repository: str, revision: str | None) -> Iterator[None]:
    """Let TransformerLens's legacy loader, which asks for the branch `main` only, read the files of one commit."""
    import huggingface_hub

    download, commit = huggingface_hub.hf_hub_download, resolved("model", repository, revision)

    def pinned(repo_id: str, filename: str, **options: Any) -> str:
        return download(repo_id, filename, **options | ({"revision": commit.sha} if repo_id == repository else {}))

    with (
        patch.object(huggingface_hub, "hf_hub_download", pinned),
        patch.object(huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: list(commit.files)),
    ):
        yield


def longest_row(module: Any) -> int | None:
    """Return how many tokens a row can have by the configuration; None where nothing limits it.

    RoBERTa counts positions from one past the number of its padding token, so that the first ones are never used.
    """
    shape = text_config(module)
    longest = next((size for name in LENGTHS if isinstance(size := getattr(shape, name, None), int) and size > 0), None)
    unused = [
        part.padding_idx + 1
        for path, part in module.named_modules()
        if path.endswith("embeddings.position_embeddings") and getattr(part, "padding_idx", None) is not None
    ]
    return longest - unused[0] if longest and unused else longest


def _folded(bridge: Any) -> Any:
    """Return the bridge's module with LayerNorms folded and weights centred, hooks and all."""
    bridge.enable_compatibility_mode()
    return bridge.original_model


def blocks_of(module: Any, name: str) -> str:
    """Return the path from a module of transformers to its list of blocks; the proof at load shows if it is right.

    It is the list with as many entries as the configuration has layers; of several, the one with most weights.

    Raises:
        ModelError: there is none, for example where one block is used again and again.
    """
    root = module.both.get_decoder() if isinstance(module, DecoderSide) else module
    shape, side = root.config.get_text_config(), "encoder" if "Encoder" in type(root).__name__ else "decoder"
    sizes = (getattr(shape, key, None) for key in (f"{side}_layers", *DEPTHS))
    depth = next((number for number in sizes if isinstance(number, int)), None)
    own = set(root.modules())
    fitting = {
        path: sum(weight.numel() for weight in part.parameters())
        for path, part in module.named_modules()
        if isinstance(part, nn.ModuleList) and len(part) == depth and part in own
    }
    if not fitting:
        raise ModelError(f"{name}: {type(root).__name__} has no list of {depth} blocks, so it cannot be cut at them")
    return max(fitting, key=lambda path: fitting[path])


def placement(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of transformers' `from_pretrained` that bring weights to where they are used."""
    options: dict[str, Any] = {}
    if config.quantization:
        from transformers import BitsAndBytesConfig

        in_8bit = config.quantization == "8bit"
        compute = {} if in_8bit else {"bnb_4bit_compute_dtype": getattr(torch, config.dtype)}
        options["quantization_config"] = BitsAndBytesConfig(load_in_8bit=in_8bit, load_in_4bit=not in_8bit, **compute)
    if config.device_map is not None:
        options["device_map"] = {"": "disk"} if config.device_map == "disk" else config.device_map
        options["offload_folder"] = tempfile.mkdtemp(prefix="thinkalike-offload-")  # `placed` removes it
    elif device.type == "cuda":  # shard by shard, and never whole in the memory of the machine
        options["device_map"] = {"": device}
    return options


def placed(module: Any, options: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """Return a module on its device and in its dtype, unless its weights were laid out as they were read.

    Args:
        options: those of `placement`, with which it was read.
    """
    if folder := options.get("offload_folder"):
        weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    if folder or getattr(module, "hf_quantizer", None) is not None:
        return module
    return module.to(device=device, dtype=dtype)


def one_side(module: Any, config: ModelConfig) -> nn.Module:
    """Return the encoder or the decoder of an encoder-decoder, by `model.side`."""
    if config.side == "encoder":
        return module.get_encoder()  # type: ignore[no-any-return]
    if config.side == "decoder":
        return DecoderSide(module)
    raise ModelError(f"{config.called} is an encoder-decoder: choose model.side=encoder or model.side=decoder")


class DecoderSide(nn.Module):
    """An encoder-decoder whose encoder and decoder read the same text; the states are those of the decoder."""

    def __init__(self, module: Any):
        super().__init__()
        self.both = module
        self.config = module.config

    def get_input_embeddings(self) -> Any:
        """Return the token embedding, as modules of transformers do."""
        return self.both.get_input_embeddings()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the decoder's last states, (b, t, d)."""
        return self.both.base_model(  # type: ignore[no-any-return]
            input_ids=tokens,
            attention_mask=attention_mask,
            decoder_input_ids=tokens,
            decoder_attention_mask=attention_mask,
        )[0]


def _without_hooks(bridge: Any, name: str) -> Any:
    """Return the bridge's module without hooks and with fused attention, proved to agree."""
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module: Any = without_hooks(bridge.original_model.eval())
        bare = first_tensor(module(tokens))
    error = relative_error(bare, hooked)
    if not error <= TOLERANCE[bare.dtype]:  # NaN fails as well
        check_values(module, name)
        raise ModelError(f"{name}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return module
