"""The cache of states of stimuli, so that a model reads the same stimuli once, whichever jobs want its states.

An entry is one safetensors file, named by the digest of all that can change a bit of it. A file that is damaged is
removed, one that cannot be written is done without, and those that were read longest ago go where all take too much.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from thinkalike.config import ModelConfig, as_dict
from thinkalike.data.text.cache import making
from thinkalike.models import checkpoint_fingerprint, pick_device

log = logging.getLogger(__name__)

LARGEST = 4 * 2**30  # bytes of all entries together
PACKAGES = ("torch", "transformers", "transformer-lens", "tokenizers", "mamba-ssm", "causal-conv1d")
CODE = ("models", "states")  # the parts of this package that states come from
LEFT_OUT = ("name", "path", "device", "corpus", "members")  # settings of a model that its states do not show


class KeptStates(NamedTuple):
    """States of stimuli by layer, and what else is known of the model that they are of."""

    states: list[Tensor]
    about: dict[str, Any]


def kept_states(
    folder: Path, config: ModelConfig, stimuli: str, embed: bool, compute: Callable[[], KeptStates]
) -> KeptStates:
    """Return the states of stimuli in a model from the cache, or compute them and put them there.

    Args:
        folder: where the entries are.
        config: the model.
        stimuli: their fingerprint.
        compute: loads and runs the model.
    """
    path = folder / f"{_key(config, stimuli, embed)}.safetensors"
    if found := _read(path):
        return found
    with making(path):
        if found := _read(path):  # of the process that had the lock before
            return found
        computed = compute()
        _write(path, computed)
    return computed


def _key(config: ModelConfig, stimuli: str, embed: bool) -> str:
    """Return a digest of all that can change a bit of the states."""
    settings = {name: value for name, value in as_dict(config).items() if name not in LEFT_OUT}
    device = pick_device(config.device)
    kind = torch.cuda.get_device_name(device) if device.startswith("cuda") else _processor()
    arithmetic = [device, kind, torch.get_num_threads(), torch.get_float32_matmul_precision()]
    everything = [settings, checkpoint_fingerprint(config), stimuli, embed, arithmetic, _versions(), _code()]
    text = json.dumps(everything, sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _processor() -> str:
    """Return which instructions the processor has, by which kernels are chosen."""
    return str(torch.backends.cpu.get_cpu_capability())


def _versions() -> dict[str, str]:
    found = {}
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def _code() -> str:
    """Return the SHA-256 of the code that loads and runs models, whose version may stay the same while it changes."""
    digest = hashlib.sha256()
    root = Path(__file__).parents[1]
    for path in sorted(path for part in CODE for path in (root / part).rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _read(path: Path) -> KeptStates | None:
    """Return an entry, or None if there is none; one that is damaged is removed."""
    if not path.exists():
        return None
    try:
        with safe_open(path, "pt") as file:
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            about = json.loads(file.metadata()["states"])
        states = [arrays[str(number)] for number in range(len(arrays))]
        if _digest(states, about["about"]) != about["digest"]:
            raise ValueError("its checksum is not that of what was written")
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        log.warning("the states in %s are damaged (%s) and are computed anew", path, error)
        with contextlib.suppress(OSError):
            path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):  # a folder that can only be read
        os.utime(path)
    return KeptStates(states, about["about"])


def _write(path: Path, kept: KeptStates) -> None:
    """Write an entry in one step; where that is impossible, warn and go on."""
    size = sum(layer.numel() * layer.element_size() for layer in kept.states)
    if size > LARGEST:
        return
    aside = path.with_suffix(f".{os.getpid()}.aside")
    about = {"about": kept.about, "digest": _digest(kept.states, kept.about)}
    try:
        _make_room(path.parent, size)
        arrays = {str(number): layer.contiguous() for number, layer in enumerate(kept.states)}
        save_file(arrays, aside, metadata={"states": json.dumps(about)})
        os.replace(aside, path)
    except (OSError, SafetensorError) as error:
        log.warning("the cache of states %s cannot be written (%s); going on without it", path.parent, error)
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def _make_room(folder: Path, size: int) -> None:
    """Remove the entries that were read longest ago until all, with a new one of this size, take at most `LARGEST`."""
    entries = []
    for path in folder.glob("*.safetensors"):
        with contextlib.suppress(OSError):  # another process removed it
            entries.append((path.stat().st_mtime, path.stat().st_size, path))
    total = size + sum(own for _, own, _ in entries)
    for _, own, path in sorted(entries):
        if total <= LARGEST:
            return
        path.unlink(missing_ok=True)
        total -= own


def _digest(states: Sequence[Tensor], about: Mapping[str, Any]) -> str:
    """Return the SHA-256 of all states and of what is known of their model."""
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode())
    for layer in states:
        digest.update(f"{tuple(layer.shape)} {layer.dtype}".encode())
        digest.update(layer.contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
