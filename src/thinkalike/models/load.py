"""Loading: the hub, a local folder or an embedded mini, through TransformerLens, with errors that say how to go on."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import json
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError
from thinkalike.models.families import FAMILIES
from thinkalike.models.frozen import TOLERANCE, FrozenModel, sample_tokens
from thinkalike.models.minis import ASSETS, folder_of, read_mini
from thinkalike.models.plain import plain

log = logging.getLogger(__name__)

HUB_SECONDS = 8  # how long to wait for an answer of the hub


def load_model(config: ModelConfig) -> FrozenModel:
    """Load what `config` names, onto its device and in its dtype, and prove that it can be cut at its blocks.

    Raises:
        ModelError: weights cannot be had or read, are of another architecture, or fail the proof.
    """
    with _explained(config):
        return _load(config)


def head_dimensions(config: ModelConfig) -> dict[str, int]:
    """Sizes of a Hugging Face model from its configuration alone: layers, d_model, heads, d_head, rotary.

    Raises:
        ModelError: the configuration cannot be had.
    """
    from transformers import AutoConfig

    folder = folder_of(config) if config.mini else config.path
    with _explained(config), contextlib.nullcontext() if folder else _hub(str(config.hub_id), config.revision):
        shape = AutoConfig.from_pretrained(folder or config.hub_id, revision=config.revision)
    d_head = shape.hidden_size // shape.num_attention_heads
    rotary = int(d_head * (getattr(shape, "rope_parameters", None) or {}).get("partial_rotary_factor", 0))
    sizes = {"layers": shape.num_hidden_layers, "d_model": shape.hidden_size, "heads": shape.num_attention_heads}
    return {**sizes, "d_head": d_head, "rotary": rotary}


@contextlib.contextmanager
def _explained(config: ModelConfig) -> Iterator[None]:
    """The libraries below raise errors of many kinds; the user needs one line."""
    _quieten()
    try:
        yield
    except ModelError:
        raise
    except Exception as error:
        if os.environ.get("THINKALIKE_TRACEBACK"):
            raise
        raise ModelError(_explain(config, error)) from error


def _load(config: ModelConfig) -> FrozenModel:
    device, dtype = torch.device(pick_device(config.device)), getattr(torch, config.dtype)
    family = config.family
    if config.mini:
        config = replace(config, path=str(folder_of(config)))
    if config.mini and family == "native":
        module, tokenizer = read_mini(Path(str(config.path)))
        context, revision = module.cfg.n_ctx, "embedded"
    else:
        family = _family_of(config) if family == "auto" else family
        bridge, tokenizer, revision = _boot(config, family, dtype)
        context = bridge.cfg.n_ctx
        module = _unwrap(bridge, config)
    return FrozenModel(
        module.to(device=device, dtype=dtype),
        FAMILIES[family],
        tokenizer,
        name=config.name if config.name != "local" else Path(str(config.path)).name,
        context=min(context or 1024, config.context or 1024),
        bos_each_row=config.bos,
        revision=revision,
        kernels=kernels_of(family),
    )


def content(config: ModelConfig) -> str:
    """A digest of the files of a local checkpoint or mini, which may change under the same name; "" for a hub model.

    Raises:
        ModelError: there are no files.
    """
    if not (config.path or config.mini):
        return ""
    folder = Path(config.path) if config.path else ASSETS / config.name
    files = sorted(path for path in folder.rglob("*") if path.suffix in {".json", ".safetensors", ".bin"})
    if not files:
        raise ModelError(f"model={config.name}: {folder} holds no checkpoint")
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.name.encode())
        digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def pick_device(name: str) -> str:
    """The device that `auto` stands for here, or the name as it is."""
    if name != "auto":
        return name
    if torch.cuda.is_available():
        return "cuda"
    return "cpu"


def kernels_of(family: str) -> str:
    """Which code runs the blocks; Mamba has fused kernels where its extra is installed."""
    if family != "mamba":
        return "torch"
    fused = all(importlib.util.find_spec(name) for name in ("mamba_ssm", "causal_conv1d"))
    return "mamba-ssm" if fused and torch.cuda.is_available() else "transformers (mamba-ssm is not installed)"


def _family_of(config: ModelConfig) -> str:
    """The family that a local checkpoint's config.json names."""
    path = Path(str(config.path)) / "config.json"
    if not path.exists():
        raise ModelError(f"model.path={config.path} has no config.json; give a folder written by save_pretrained")
    kind = json.loads(path.read_text()).get("model_type", "none")
    if kind not in FAMILIES:
        raise ModelError(f"{path} says model_type={kind}, which is not among {', '.join(FAMILIES)}")
    return kind


def _boot(config: ModelConfig, family: str, dtype: torch.dtype) -> tuple[Any, Any, str]:
    """The TransformerLens bridge, on the CPU, the checkpoint's own tokenizer, and the commit that both came from.

    The bridge's tokenizer puts BOS before every text, which GPT-2 and Pythia were not trained with.
    """
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    if config.path:
        folder = str(Path(config.path).resolve())
        bridge = TransformerBridge.boot_transformers(folder, device="cpu", dtype=dtype)
        return bridge, AutoTokenizer.from_pretrained(folder), "embedded" if config.mini else "local"
    with _hub(str(config.hub_id), config.revision) as commit:
        if family == "legacy":
            bridge = TransformerBridge.boot_tl_legacy(config.hub_id, device="cpu", dtype=dtype)
            tokenizer = bridge.tokenizer
        else:
            options = {"revision": config.revision}
            bridge = TransformerBridge.boot_transformers(config.hub_id, device="cpu", dtype=dtype, **options)
            tokenizer = AutoTokenizer.from_pretrained(config.hub_id, **options)
    return bridge, tokenizer, commit


def _unwrap(bridge: Any, config: ModelConfig) -> Any:
    """The bridge's module; raw weights run without the hooks and with the fused attention, proved to agree."""
    if config.processing == "compat":
        bridge.enable_compatibility_mode()
        return bridge.original_model
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module: Any = plain(bridge.original_model.eval())
        bare = module(tokens)
    bare = bare if isinstance(bare, torch.Tensor) else bare[0]
    error = ((bare - hooked).abs().max() / hooked.abs().max()).item()
    if not error <= TOLERANCE[bare.dtype]:
        raise ModelError(f"{config.name}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return module


@contextlib.contextmanager
def _hub(repository: str, revision: str | None) -> Iterator[str]:
    """Reach the hub, or its cache where it does not answer; yields the commit. Legacy loading sees the revision."""
    import huggingface_hub
    from huggingface_hub import HfApi, constants

    try:
        commit = str(HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS).sha)
        offline = constants.HF_HUB_OFFLINE
    except (huggingface_hub.errors.RepositoryNotFoundError, huggingface_hub.errors.RevisionNotFoundError):
        raise
    except Exception as error:  # no route, no name, a time-out, offline mode: what is cached may be enough
        if not _cached(repository, revision):
            raise ModelError(_no_hub(repository, error)) from error
        commit, offline = f"{revision or 'main'} (cached)", True
        log.warning("the hub does not answer; using the cached files of %s", repository)
    download = huggingface_hub.hf_hub_download
    listing = HfApi.list_repo_files
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = offline
    try:
        if revision:  # boot_tl_legacy asks for `main` only
            huggingface_hub.hf_hub_download = _at_revision(download, repository, revision)  # type: ignore[assignment]
            HfApi.list_repo_files = functools.partialmethod(listing, revision=revision)  # type: ignore
        if offline:
            files = _cached_files(repository, revision)
            HfApi.list_repo_files = lambda *_, **__: files  # type: ignore[method-assign]
        yield commit
    finally:
        huggingface_hub.hf_hub_download, HfApi.list_repo_files = download, listing  # type: ignore[method-assign]
        constants.HF_HUB_OFFLINE = before


def _at_revision(download: Callable[..., str], repository: str, revision: str) -> Callable[..., str]:
    def pinned(repo_id: str, filename: str, **options: Any) -> str:
        if repo_id == repository:
            options["revision"] = revision
        return download(repo_id, filename, **options)

    return pinned


def _cached(repository: str, revision: str | None) -> bool:
    from huggingface_hub import try_to_load_from_cache

    return isinstance(try_to_load_from_cache(repository, "config.json", revision=revision), str)


def _cached_files(repository: str, revision: str | None) -> list[str]:
    from huggingface_hub import try_to_load_from_cache

    config = try_to_load_from_cache(repository, "config.json", revision=revision)
    folder = Path(str(config)).parent
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]


def _no_hub(repository: str, error: Exception) -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return (
        f"cannot get {repository}: {endpoint} does not answer ({type(error).__name__}) and HF_HOME={home} has no copy; "
        f"set HF_HOME to a cache that has it, give a folder (model=local model.path=DIR), or take a mini "
        f"(model=gelu-3l-mini)"
    )


def _explain(config: ModelConfig, error: Exception) -> str:
    place = config.path or (ASSETS / config.name if config.mini else config.hub_id)
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    remedy = "check model.path" if config.path else "if a file is damaged, delete it under HF_HOME and try again"
    return f"cannot load model={config.name} from {place}: {type(error).__name__}: {reason[:300]}; {remedy}"


def _quieten() -> None:
    """Libraries below announce themselves at import; a job's output is its own."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(HUB_SECONDS))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    if not os.isatty(2):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    if not os.isatty(2):
        transformers.logging.disable_progress_bar()
