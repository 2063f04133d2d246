"""Where checkpoints are, what tells them apart, and why one cannot be read, in one line.

Nothing here imports torch or transformers before a model is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from thinkalike.config import ModelConfig, model_named
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.parts import HOW_IT_RUNS
from thinkalike.digests import LARGEST_JSON, read_json, regular, remembered_digest
from thinkalike.errors import (
    ConfigError,
    ModelError,
    ResourceError,
    ThinkalikeError,
    listed,
    natural_order,
    one_line,
    panicked,
)
from thinkalike.files import is_folder, is_there
from thinkalike.hub import Commit, cause_of, reading, refused, resolved
from thinkalike.models.bounds import check_counts, tensors_held
from thinkalike.models.formats import WEIGHT_FILES, check_no_pointer, conversion
from thinkalike.shards.index import states_fingerprint

log = logging.getLogger(__name__)

ASSETS = Path(__file__).resolve().parents[1] / "assets"  # the minis
ADAPTER = "adapter_config.json"
STATED = ("config.json", ADAPTER)  # files of which every checkpoint has one
WEIGHTS = ("model*.safetensors", "pytorch_model*.bin")  # a folder that has these is read as transformers wrote it
STEP = re.compile(r"(?:step|checkpoint)[-_=]?(\d+)")  # step64, global_step64, checkpoint-500, step1000-tokens4B
CUTTERS = {".json", ".txt", ".model", ".spm", ".tiktoken", ".codes", ".tokenizer"}  # configuration and tokenizer
READ = {*CUTTERS, ".safetensors", ".bin", ".pt", ".pth"}  # and weights
SIZED = re.compile(r"layers?$|blocks?|_config$|^auto_map$")  # entries without which a class takes its default size
LIGHTNING = ".ckpt"  # a file with the weights of a module of Lightning, whose config.json and tokenizer are beside it
LARGEST_SHAPE = 2**24  # bytes of a config.json, of which transformers makes many copies
WHOLE = "take the index and all of its files from one revision"
GIVE = "give model.base=FOLDER, ORG/NAME or an everyday name"  # the model that an adapter changes
LESS = "take a smaller model, model.dtype=bfloat16, or a device with more memory (model.device)"


def named_folder(config: ModelConfig) -> Path | None:
    """Return the folder or file that a configuration names, whatever it holds, or None if the model is on the hub.

    A revision of a folder is a folder in it, such as a run's step64 or checkpoint-500, or a file of Lightning.
    """
    folder = Path(config.path) if config.path else ASSETS / config.name if config.mini else None
    return folder / config.revision if folder and config.revision else folder


def revisions_in(folder: Path) -> list[Path]:
    """Return the folders in a folder that hold checkpoints, and the checkpoints of Lightning."""
    if not is_folder(folder):
        return []
    with os.scandir(folder) as entries:
        names = [entry.name for entry in entries if entry.name.endswith(LIGHTNING) or entry.is_dir()]
    inside = [folder / name for name in sorted(names, key=natural_order)]
    return [path for path in inside if path.suffix == LIGHTNING or any((path / name).is_file() for name in STATED)]


def folder_of(config: ModelConfig) -> Path | None:
    """Return the folder of a checkpoint, or its GGUF file or that of Lightning, or None if it is on the hub.

    A folder without a whole checkpoint is refused, and so is a setting that would change a name and no number.
    """
    folder = named_folder(config)
    if folder is None:
        return None
    if config.revision and is_there(folder.parent) and not is_there(folder):
        there = listed([path.name for path in revisions_in(folder.parent)]) or "none"
        raise ConfigError(f"model.revision={config.revision} is not in {folder.parent}, whose revisions are: {there}")
    gguf = gguf_in(folder) if is_there(folder) else None
    if gguf:
        check_no_pointer([gguf])
        return gguf
    if is_folder(folder) and not _has_weights(folder) and not is_adapter(folder) and (found := conversion(folder)):
        raise ModelError(f"model={config.called}: {found}")
    inside = _around(folder)
    files = os.listdir(inside) if is_folder(inside) else []
    _check_readable(inside, files)
    check_no_pointer([inside / name for name in sorted(files) if Path(name).suffix in READ])
    if folder.suffix == LIGHTNING:
        check_no_pointer([folder])
    if not {*STATED} & {*files}:
        remedy = "it comes with this package: install that again" if config.mini else "save_pretrained writes one"
        found = "has no config.json" if is_folder(inside) else "is a file" if is_there(inside) else "is not there"
        raise ModelError(f"model={config.called}: the folder {inside} {found}; {remedy}")
    _check_inside(folder)
    if not is_adapter(folder):
        _check_no_adapter(config, str(folder), files)
    if config.mini and not config.path:
        _check_mini(config, folder)
    return folder


def is_gguf(place: str | Path) -> bool:
    return str(place).endswith(".gguf") and Path(place).is_file()


def gguf_in(place: Path) -> Path | None:
    """Return the GGUF file that a path means: itself, or the only one of a folder without other weights."""
    if is_gguf(place):
        return place
    files = [] if _has_weights(place) else sorted(file for file in place.glob("*.gguf") if file.is_file())
    if len(files) > 1:
        names = listed([file.name for file in files])
        raise ModelError(f"{place} has {len(files)} GGUF files ({names}); name one: model={files[0]}")
    return next(iter(files), None)


def located(place: str) -> dict[str, str]:
    """Return the arguments by which `from_pretrained` finds a checkpoint: a folder, a repository, or a GGUF file."""
    folder, name = os.path.split(place) if is_gguf(place) else (place, "")
    return {"pretrained_model_name_or_path": folder or ".", **({"gguf_file": name} if name else {})}


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter and no whole model."""
    return (folder / ADAPTER).is_file() and not _has_weights(folder)


def base_of(config: ModelConfig) -> ModelConfig | None:
    """Return the model that an adapter changes, run as the adapter's settings say; None for a whole model.

    It is `model.base`, or what adapter_config.json says.
    """
    folder = Path(config.path or "", config.revision or "")
    if not config.path or not is_adapter(folder):
        if config.base:
            folder_of(config)  # says what is wrong with its folder
            raise ConfigError(f"model.base={config.base}: {config.called} is no adapter; leave it out")
        return None
    settings = _json(folder / ADAPTER)
    said = config.base or settings.get("base_model_name_or_path")
    if not said or not isinstance(said, str):
        raise ModelError(f"{folder / ADAPTER} names no base_model_name_or_path; {GIVE}")
    try:
        base = model_named(str(Path(said).absolute()) if is_there(said) else str(said), {})
    except ConfigError:
        base = None
    if base is None or (base.path and not is_there(base.path)):
        raise ModelError(f"model={config.called}: its base {said} is not here; {GIVE}")
    if base.path and is_adapter(Path(base.path)):
        raise ModelError(f"model={config.called}: its base {said} is an adapter itself; {GIVE}")
    if not (config.base or base.path):
        base = replace(base, revision=settings.get("revision") or base.revision)
    return replace(base, **{key: getattr(config, key) for key in (*HOW_IT_RUNS, "bos", "side")})


def _has_weights(folder: Path) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in WEIGHTS)


def _check_readable(folder: Path, names: Collection[str]) -> None:
    """Refuse what is no regular file, or may not be read: transformers calls it missing, and waits for pipes."""
    kinds = READ | {LIGHTNING}
    for name in sorted(names):
        path = os.path.join(folder, name)
        if os.path.splitext(name)[1] not in kinds or (os.path.isfile(path) and os.access(path, os.R_OK)):
            continue
        try:
            regular(Path(path)).open("rb").close()
        except OSError as error:
            raise ModelError(f"{path} cannot be read ({one_line(error)}); replace it") from error


def _check_inside(folder: Path) -> None:
    """Refuse an index of weights that leads out of the folder, to files that no fingerprint covers.

    So is the index that is read if it names a file that is not there; another one may be left over.
    """
    is_read = next((name for name in WEIGHT_FILES if (folder / name).is_file()), None)
    for index in folder.glob("*.index.json"):
        names = weight_map(index).values()
        for parent in {os.path.dirname(name) for name in names}:
            if parent and not (folder / parent).resolve().is_relative_to(folder.resolve()):
                raise ModelError(f"{index} names weights outside its folder: {parent}")
            if index.name == is_read and not (folder / parent).is_dir():
                raise ModelError(f"{index} names weights in {parent}, and there is no such folder; {WHOLE}")
        if index.name == is_read:
            for name in dict.fromkeys(names):
                if not (folder / name).is_file():
                    raise ModelError(f"{index} names {name}, and there is no such file; {WHOLE}")


def weight_map(index: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index of weights says; anything else in it is a ModelError."""
    files = _json(index).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(file, str) and file for file in files.values()):
        raise ModelError(f"{index} has no weight_map of tensors and the names of their files; {WHOLE}")
    return files


def _check_no_adapter(config: ModelConfig, place: str, files: Collection[str]) -> None:
    if ADAPTER in files:
        raise ModelError(
            f"model={config.called}: {place} has an {ADAPTER} beside a model or on the hub; give a folder of the "
            "adapter alone, with model.base=MODEL, or remove its files to read the base model"
        )


def _check_mini(config: ModelConfig, folder: Path) -> None:
    """Refuse settings that are not those of a bundled model: they would change a key and no number."""
    for key, (value, own) in config.fixed_by(_json(folder / "config.json")).items():
        if value != own:
            raise ConfigError(f"model.{key}={value}: {config.called} is trained already, and has {own}; leave it out")


def checkpoint_fingerprint(config: ModelConfig) -> str:
    """Return the commit of a model of the hub, or the SHA-256 of all files that loading may read, as 16 digits.

    That of a folder of states is of its index, which lists the digests of all its files.

    That of a model in memory is its digest; one in TransformerLens's old layout has its tokenizer's commit, too.
    """
    if isinstance(config, LoadedModelConfig):
        return config.digest
    if config.holds_states:
        return states_fingerprint(str(config.path))
    with explained(config):
        folder = folder_of(config)
        if folder is None:
            is_commit, is_legacy = re.fullmatch(r"[0-9a-f]{40}", config.revision or ""), config.family == "legacy"
            commit = str(config.revision) if is_commit else _commit_of(config).sha
            shape = read_shape(replace(config, revision=commit), str(config.hub_id)) if is_legacy else {}
            cutter = shape.get("tokenizer_name")
            return f"{commit} {_commit_of(replace(config, hub_id=cutter, revision=None)).sha}" if cutter else commit
        digest = hashlib.sha256()
        inside = sorted(path for path in folder.rglob("*") if path.suffix in READ and path.is_file())
        others = [path for path in revisions_in(folder) if STEP.search(path.name)]
        inside = [path for path in inside if not any(path.is_relative_to(other) for other in others)]
        if config.revision and not (folder / "tokenizer.json").exists():  # a run may keep its tokenizer above
            inside += _beside(folder)
        for path in inside if is_folder(folder) else [folder, *_beside(folder)]:
            digest.update(path.name.encode())
            digest.update(bytes.fromhex(remembered_digest(path)))
        if base := base_of(config):
            digest.update(checkpoint_fingerprint(base).encode())
        return digest.hexdigest()[:16]


@contextlib.contextmanager
def reached(config: ModelConfig) -> Iterator[tuple[str, str]]:
    """Yield the folder, GGUF file or repository of a checkpoint, which can be read meanwhile, and its commit."""
    folder = folder_of(config)
    if folder is None:
        with _hub(config) as commit:
            yield str(config.hub_id), commit
        return
    place, revision = folder.resolve(), "embedded" if config.mini else "local"
    if folder.suffix != LIGHTNING:
        yield str(place), revision
        return
    import torch

    with tempfile.TemporaryDirectory(prefix="thinkalike-lightning-") as unpacked:  # as `save_pretrained` writes it
        for path in _beside(place):
            Path(unpacked, path.name).symlink_to(path)
        others = torch.serialization.get_unsafe_globals_in_checkpoint(place)  # type: ignore[no-untyped-call]
        with torch.serialization.safe_globals([(_Unread, name) for name in others]):
            weights = torch.load(place, map_location="cpu", weights_only=True, mmap=True)["state_dict"]
        if len({name.partition(".")[0] for name in weights}) == 1:  # the attribute that holds the model
            weights = {name.partition(".")[2]: weight for name, weight in weights.items()}
        torch.save(weights, Path(unpacked, "pytorch_model.bin"))
        yield unpacked, revision


class _Unread:
    """Stands for what a checkpoint of Lightning holds beside tensors, such as settings, whose classes never run."""

    def __init__(self, *given: Any):
        pass

    def __setstate__(self, state: Any) -> None:
        pass


def _around(place: Path) -> Path:
    return place.parent if place.suffix == LIGHTNING else place


def _beside(place: Path) -> list[Path]:
    """Return the configuration and the tokenizer beside a checkpoint; a GGUF file has its own."""
    around = [] if place.suffix == ".gguf" else sorted(place.parent.iterdir())
    return [path for path in around if path.suffix in CUTTERS and path.is_file() and "index" not in path.name]


def read_shape(config: ModelConfig, place: str) -> dict[str, Any]:
    """Return the config.json of a checkpoint that is `reached`, without code of the hub, or what a GGUF file says."""
    import huggingface_hub

    path = Path(place)
    if named_folder(config) is None:
        path = Path(huggingface_hub.hf_hub_download(place, "config.json", revision=config.revision)).parent
    shape = _shape_in(path)
    if code := _code_of_the_hub(shape):
        raise ModelError(f"config.json of {path} says {code}, which is code of the hub and is never run; remove it")
    if "model_type" in shape and not any(SIZED.search(name) for name in shape):
        raise ModelError(f"config.json of {path} states no number of blocks, such as num_hidden_layers; add its sizes")
    return shape


def known_shape(place: Path) -> dict[str, Any]:
    """Return what `read_shape` does of a folder or file; nothing if it is damaged, which loading reports."""
    with contextlib.suppress(OSError, ModelError):
        return _shape_in(place)
    return {}


def _shape_in(place: Path) -> dict[str, Any]:
    """Return what states the sizes of a checkpoint: its GGUF file, or the config.json of its folder."""
    path = gguf_in(place) or _around(place) / "config.json"
    if path.suffix == ".gguf":
        from thinkalike.models.gguf import gguf_said  # which no other checkpoint needs

        return {key: value for key, value in gguf_said(path)[0].to_dict().items() if value is not None}
    shape = _json(path, LARGEST_SHAPE)
    check_counts(shape, path.parent, partial(tensors_held, path.parent))
    return shape


def _json(path: Path, largest: int = LARGEST_JSON) -> dict[str, Any]:
    try:
        return read_json(path, largest)
    except ValueError as error:
        raise ModelError(f"{path} is no JSON object ({error}); replace it by the checkpoint's own") from None


def _code_of_the_hub(shape: Mapping[Any, Any]) -> str:
    """Return the entry of a config.json, or of a part of it, that names an implementation ORG/NAME."""
    for key, value in shape.items():
        if isinstance(value, dict) and (found := _code_of_the_hub(value)):
            return found
        if "implementation" in str(key) and "/" in str(value):
            return f"{key}={value}"
    return ""


def _commit_of(config: ModelConfig) -> Commit:
    if config.hub_id is None:
        raise ConfigError(f"model={config.called} says nowhere where its weights are; give model.path or model.hub_id")
    try:
        commit = resolved("model", str(config.hub_id), config.revision)
    except Exception as error:
        if refused(error):
            raise
        from huggingface_hub import constants

        raise ModelError(
            f"model={config.called}: cannot get {config.hub_id}: {_cause(config, error)} ({constants.ENDPOINT}), "
            f"and {constants.HF_HUB_CACHE} has no copy; set HF_HOME to a cache that has it, give a folder (model=local "
            f"model.path=DIR), or take a mini, such as gelu-3l-mini"
        ) from error
    _check_no_adapter(config, str(config.hub_id), commit.files)
    return commit


@contextlib.contextmanager
def _hub(config: ModelConfig) -> Iterator[str]:
    """Reach the hub, or its cache where it does not answer, and yield the commit that all files are read of."""
    from huggingface_hub import constants, hf_hub_download

    repository, commit = str(config.hub_id), _commit_of(config)
    if is_folder(repository):
        found = f"model={config.called}: {repository} is also a folder here, which would be read instead"
        raise ModelError(f"{found}; call from elsewhere, or give the folder: model=local model.path={repository}")
    offline: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()
    if commit.trouble:
        log.warning("using the cached files of %s: %s", repository, _cause(config, commit.trouble))
        offline = patch.object(constants, "HF_HUB_OFFLINE", True)  # else each file would be asked for in vain
    with offline, reading("model", repository, commit.sha):
        try:
            yield commit.sha
        except OSError as error:  # transformers calls a file missing that the hub does not deliver
            for name in (name for name in commit.files if name in str(error)):
                hf_hub_download(repository, name, revision=commit.sha)  # the hub's own answer tells the cause
            raise


@contextlib.contextmanager
def explained(config: ModelConfig) -> Iterator[None]:
    """Turn errors of the libraries that load models into a ModelError or a ResourceError of one line."""
    _quieten()
    try:
        yield
    except ThinkalikeError:
        raise
    except BaseException as error:
        # A hook of a model in memory may end a process, as code of a command does; its word is no reason to obey.
        if not (isinstance(error, Exception | SystemExit) or panicked(error)):
            raise
        from thinkalike.memory import exhausted  # imports torch

        folder = named_folder(config)
        place = folder or config.hub_id
        attempt = f"cannot load model={config.called} from {place}"
        if place is None:
            attempt = f"cannot load {config.called}, a model in memory"
        if cause := exhausted(error):
            raise ResourceError(f"{attempt}: {_said(cause)}; {LESS}") from error
        raise ModelError(f"{attempt}: {_said(error) if folder else _cause(config, error)}") from error


def _cause(config: ModelConfig, error: BaseException) -> str:
    return cause_of(error, str(config.hub_id), config.revision) or _said(error)


def _said(error: BaseException) -> str:
    return f"{type(error).__name__}: {one_line(error)}"


def _quieten() -> None:
    """Keep the libraries from announcing themselves: a job's output is its own."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    loaded = sys.modules.get("transformers.utils.logging")  # which reads the variables once
    if os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error") == "error" and loaded:
        loaded.set_verbosity_error()
        loaded.disable_progress_bar()
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")
    os.environ.setdefault("DISABLE_SAFETENSORS_CONVERSION", "1")  # else transformers asks the hub to convert .bin files
    if constants.HF_HUB_DISABLE_PROGRESS_BARS is None:  # the user's environment says nothing of them
        disable_progress_bars()
