"""Where a checkpoint is, a folder or the hub and its cache; and errors of what reads it, in one line with a remedy."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from thinkalike.config import ModelConfig
from thinkalike.errors import HubError, ModelError, ResourceError, ThinkalikeError, nearest
from thinkalike.hub import ANSWER_SECONDS, Commit, be_patient, cause_of, refused, resolved, trouble
from thinkalike.memory import exhausted
from thinkalike.models.checkpoints.contents import fault_of
from thinkalike.models.checkpoints.minis import ASSETS

log = logging.getLogger(__name__)

LESS = "take a smaller model, model.dtype=bfloat16, or a device with more memory (model.device)"


@contextlib.contextmanager
def explained(config: ModelConfig) -> Iterator[None]:
    """Turn errors of the libraries that load models, which are of many kinds, into one line.

    Raises:
        ModelError: a library failed.
        ResourceError: there is too little memory for the model.
    """
    _quieten()
    try:
        yield
    except Exception as error:
        if isinstance(error, ThinkalikeError) and not isinstance(error, HubError):
            raise
        if os.environ.get("THINKALIKE_TRACEBACK"):
            raise
        if cause := exhausted(error):
            raise ResourceError(f"{_attempt(config, cause)}; {LESS}") from error
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
        with hub(config) as commit:
            yield str(config.hub_id), commit


def check_folder(config: ModelConfig) -> None:
    """Refuse a folder that holds no checkpoint.

    Raises:
        ModelError: a folder is given, and has no config.json.
    """
    if config.path and not (Path(config.path) / "config.json").exists():
        remedy = fault_of(config) or "give a folder written by save_pretrained"
        raise ModelError(f"model.path={config.path} has no config.json; {remedy}")


def read_shape(config: ModelConfig, place: str) -> dict[str, Any]:
    """Return the contents of the config.json of a checkpoint that is `reached`.

    Raises:
        ModelError: the checkpoint has none, or it is damaged.
    """
    import huggingface_hub
    from huggingface_hub.errors import RemoteEntryNotFoundError

    if config.path:
        check_folder(config)
        path = Path(place) / "config.json"
    else:
        try:
            path = Path(huggingface_hub.hf_hub_download(place, "config.json", revision=config.revision))
        except RemoteEntryNotFoundError as error:
            fault = fault_of(config)
            what = f"{place} has no config.json, so model={config.name} cannot be read"
            raise ModelError(f"{what}; {fault}" if fault else what) from error
    try:
        return dict(json.loads(path.read_text()))
    except (ValueError, TypeError) as error:
        raise ModelError(f"{path} is no JSON object ({error}); replace it by the checkpoint's own") from None


def commit_of(config: ModelConfig) -> Commit:
    """Return the commit of a model of the hub, as the hub says or as the cache has it.

    Raises:
        ModelError: the hub does not give it, and the cache has no copy.
    """
    try:
        return resolved("model", str(config.hub_id), config.revision)
    except Exception as error:
        raise ModelError(_unresolved(config, error)) from error


@contextlib.contextmanager
def hub(config: ModelConfig) -> Iterator[str]:
    """Reach the hub, or its cache where it does not answer, and yield the commit that all files are read of.

    Legacy loading, which asks for the branch `main` only, gets the files of that commit as well.

    Raises:
        ModelError: the hub does not answer, and the cache has no copy.
    """
    import huggingface_hub
    from huggingface_hub import HfApi, constants

    repository, revision, commit = str(config.hub_id), config.revision, commit_of(config)
    if Path(repository).is_dir():
        raise ModelError(
            f"model={config.name}: {repository} is a folder here, too, which would be read in the place of the "
            f"repository; call from elsewhere, or give the folder: model=local model.path={repository}"
        )
    if offline := commit.trouble is not None:
        log.warning("using the cached files of %s: %s", repository, cause_of(commit.trouble, repository, revision))
    download, listing, before = huggingface_hub.hf_hub_download, HfApi.list_repo_files, constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = before or offline
    try:
        huggingface_hub.hf_hub_download = _at_revision(download, repository, commit.sha)  # type: ignore[assignment]
        HfApi.list_repo_files = functools.partialmethod(listing, revision=commit.sha)  # type: ignore
        if offline:
            files = _cached_files(repository, commit.sha)
            HfApi.list_repo_files = lambda *_, **__: files  # type: ignore[method-assign]
        yield commit.sha
    finally:
        huggingface_hub.hf_hub_download, HfApi.list_repo_files = download, listing  # type: ignore[method-assign]
        constants.HF_HUB_OFFLINE = before


def _at_revision(download: Callable[..., str], repository: str, revision: str) -> Callable[..., str]:
    def pinned(repo_id: str, filename: str, **options: Any) -> str:
        if repo_id == repository:
            options["revision"] = revision
        return download(repo_id, filename, **options)

    return pinned


def _cached_files(repository: str, commit: str) -> list[str]:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repository.replace('/', '--')}" / "snapshots" / commit
    return [str(path.relative_to(folder)) for path in sorted(folder.rglob("*")) if path.is_file()]


def _unresolved(config: ModelConfig, error: Exception) -> str:
    cause = cause_of(error, str(config.hub_id), config.revision) or _first_line(error)
    near = _near(str(config.hub_id))
    if refused(error):
        kind = "" if isinstance(error, HubError) else f"{type(error).__name__}: "
        return f"{near}cannot load model={config.name} from {config.hub_id}: {kind}{cause}"
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    home = os.environ.get("HF_HOME", "~/.cache/huggingface")
    return (
        f"{near}model={config.name}: cannot get {config.hub_id}: {cause} ({endpoint}), and HF_HOME={home} has no copy; "
        "set HF_HOME to a cache that has it, give a folder (model=local model.path=DIR), or take a mini "
        "(model=gelu-3l-mini)"
    )


def _near(name: str) -> str:
    """Return that a name may be that of a folder which is not there, where the folder that it would be in is."""
    owner, _, own = name.partition("/")
    there = [path.name for path in sorted(Path(owner).iterdir()) if path.is_dir()] if Path(owner).is_dir() else []
    return f"{owner} is a folder here, and has no {own} ({nearest(own, there)}). " if own and there else ""


def _explanation(config: ModelConfig, error: Exception) -> str:
    missing = isinstance(error, OSError) and error.errno in (None, errno.ENOENT)  # as of a file that is not there
    if missing and (fault := fault_of(config)):
        return f"cannot load model={config.name} from {config.path or config.hub_id}: {fault}"
    if not config.path:
        for each in (error, trouble()):
            if each and (cause := cause_of(each, str(config.hub_id), config.revision)):
                return f"cannot load model={config.name} from {config.hub_id}: {cause}"
    return f"{_attempt(config, error)}; {_remedy(config, error)}"


def _attempt(config: ModelConfig, error: BaseException) -> str:
    place = config.path or (ASSETS / config.name if config.mini else config.hub_id)
    return f"cannot load model={config.name} from {place}: {type(error).__name__}: {_first_line(error)[:300]}"


def _remedy(config: ModelConfig, error: Exception) -> str:
    """Return what a user can do about an error of a library, by what it is about."""
    words, number = str(error).lower(), getattr(error, "errno", None)
    if "device_map" in words:
        return "check model.device_map"
    if isinstance(error, ImportError):
        return "install that package, or choose a checkpoint that does without"
    if any(part in words for part in ("cuda", "device", "no nvidia driver")) and isinstance(error, RuntimeError):
        return "check model.device"
    if number in (errno.ENOSPC, errno.EDQUOT):
        return "free space on that disk, or set HF_HOME to a folder on another"
    if isinstance(error, PermissionError):
        return "change the permissions of that file, or set HF_HOME to a folder of your own"
    if "state_dict" in words:
        return "its weights are not those that its config.json describes; take another revision or checkpoint"
    if config.path and "Safetensor" in type(error).__name__ and (file := _damaged(Path(config.path))):
        return f"{file} is damaged or was cut short; copy it again"
    if config.path:
        return "check model.path"
    if isinstance(error, OSError | ValueError | EOFError | RuntimeError) or "Safetensor" in type(error).__name__:
        return "if a file is damaged, delete it under HF_HOME and try again"
    return "THINKALIKE_TRACEBACK=1 shows where it happened"


def _damaged(folder: Path) -> str | None:
    """Return the name of the first file of weights in a folder that cannot be opened."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(file, "np"):
                pass
        except SafetensorError:
            return file.name
    return None


def _first_line(error: BaseException) -> str:
    """Return the first line of a message, and the next ones as long as a colon announces them."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    end = next((number for number, line in enumerate(lines, 1) if not line.endswith(":")), len(lines))
    return " ".join(lines[:end])


def _quieten() -> None:
    """Keep the libraries below from announcing themselves at import, because a job's output is its own."""
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_ETAG_TIMEOUT", str(ANSWER_SECONDS))
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else transformers asks the hub to convert .bin files
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    import transformers

    be_patient()
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
