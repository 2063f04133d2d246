"""Where a checkpoint is, a folder or the hub and its cache; and errors of what reads it, in one line with a remedy."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, ThinkalikeError
from thinkalike.models.minis import ASSETS

log = logging.getLogger(__name__)

HUB_SECONDS = 8  # how long to wait for an answer of the hub


@contextlib.contextmanager
def explained(config: ModelConfig) -> Iterator[None]:
    """Turn errors of the libraries that load models, which are of many kinds, into one line.

    Raises:
        ModelError: a library failed.
    """
    _quieten()
    try:
        yield
    except ThinkalikeError:
        raise
    except Exception as error:
        if os.environ.get("THINKALIKE_TRACEBACK"):
            raise
        raise ModelError(_explanation(config, error)) from error


@contextlib.contextmanager
def reached(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the folder or the repository of a checkpoint, which can be read meanwhile, and its commit.

    Raises:
        ModelError: neither the hub nor its cache has it.
    """
    if config.path:
        yield str(Path(config.path).resolve()), "embedded" if config.mini else "local"
    else:
        with hub(str(config.hub_id), config.revision) as commit:
            yield str(config.hub_id), commit


def read_shape(config: ModelConfig, place: str) -> dict[str, Any]:
    """Return the contents of the config.json of a checkpoint that is `reached`.

    Raises:
        ModelError: the checkpoint has none, or it is damaged.
    """
    import huggingface_hub
    from huggingface_hub.errors import EntryNotFoundError

    if config.path:
        path = Path(place) / "config.json"
        if not path.exists():
            raise ModelError(f"model.path={config.path} has no config.json; give a folder written by save_pretrained")
    else:
        try:
            path = Path(huggingface_hub.hf_hub_download(place, "config.json", revision=config.revision))
        except EntryNotFoundError as error:
            raise ModelError(f"{place} has no config.json, so model={config.name} cannot be read") from error
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is no JSON object ({error}); replace it by the checkpoint's own") from None


@contextlib.contextmanager
def hub(repository: str, revision: str | None) -> Iterator[str]:
    """Reach the hub, or its cache where it does not answer, and yield the commit; legacy loading sees the revision.

    Raises:
        ModelError: the hub does not answer, and the cache has no copy.
    """
    import huggingface_hub
    from huggingface_hub import HfApi, constants

    try:
        commit = str(HfApi().model_info(repository, revision=revision, timeout=HUB_SECONDS).sha)
        offline = constants.HF_HUB_OFFLINE
    except (huggingface_hub.errors.RepositoryNotFoundError, huggingface_hub.errors.RevisionNotFoundError):
        raise
    except Exception as error:  # no route, no name, a time-out, offline mode: what is cached may be enough
        if not _cached_config(repository, revision):
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


def _cached_config(repository: str, revision: str | None) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(repository, "config.json", revision=revision)
    return Path(path) if isinstance(path, str) else None


def _cached_files(repository: str, revision: str | None) -> list[str]:
    if not (config := _cached_config(repository, revision)):
        return []
    return [str(path.relative_to(config.parent)) for path in sorted(config.parent.rglob("*")) if path.is_file()]


def _no_hub(repository: str, error: Exception) -> str:
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return (
        f"cannot get {repository}: {endpoint} does not answer ({type(error).__name__}) and HF_HOME={home} has no copy; "
        f"set HF_HOME to a cache that has it, give a folder (model=local model.path=DIR), or take a mini "
        f"(model=gelu-3l-mini)"
    )


def _explanation(config: ModelConfig, error: Exception) -> str:
    place = config.path or (ASSETS / config.name if config.mini else config.hub_id)
    reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    remedy = "check model.path" if config.path else "if a file is damaged, delete it under HF_HOME and try again"
    return f"cannot load model={config.name} from {place}: {type(error).__name__}: {reason[:300]}; {remedy}"


def _quieten() -> None:
    """Keep the libraries below from announcing themselves at import, because a job's output is its own."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(HUB_SECONDS))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else transformers asks the hub to convert .bin files
    if not os.isatty(2):
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import transformers

    transformers.logging.set_verbosity_error()
    if not os.isatty(2):
        transformers.logging.disable_progress_bar()
