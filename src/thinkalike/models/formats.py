"""Weights that are not read as they are: pointers of Git LFS, and formats that one command converts.

A library that looks for its own format says at most that a file is missing or damaged, and not
what lies there instead.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from thinkalike.digests import read_json
from thinkalike.errors import ModelError
from thinkalike.files import is_pointer, what_pulls

WEIGHT_FILES = (  # in the order in which transformers looks for them
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# and those of peft after them
IN_TURN = [*WEIGHT_FILES, "adapter_model.safetensors", "adapter_model.bin"]


class Format(NamedTuple):
    """A format of weights, and how to convert it."""

    name: str
    signs: Sequence[str]  # patterns of files in the folder of which one is there
    command: Callable[[Path], str]  # that makes a folder of safetensors or of PyTorch of it


def conversion(folder: Path) -> str:
    """Return which weights of another format lie in a folder, and what converts them; "": none."""
    for known in FORMATS:
        if any(next(folder.glob(sign), None) for sign in known.signs):
            command = known.command(folder)
            return f"{folder} holds weights of {known.name}; convert them: {command}"
    return ""


def check_no_pointer(files: Sequence[Path]) -> None:
    """Raise a ModelError for a file that is a pointer of Git LFS, as a clone without it leaves them.

    Of weights only those that are read count. Where there is a tokenizer.json, no other file of a
    tokenizer is read.
    """
    by_name = {path.name: path for path in files}
    first = next((name for name in IN_TURN if name in by_name), None)
    read = {first} if first else set[str]()
    if first and first.endswith(".index.json") and not is_pointer(by_name[first]):
        with contextlib.suppress(
            ValueError, AttributeError
        ):  # a damaged index is reported where it is read
            read |= {*map(str, read_json(by_name[first]).get("weight_map", {}).values())}
    whole_tokenizer = "tokenizer.json" in by_name and not is_pointer(by_name["tokenizer.json"])
    for name, path in by_name.items():
        is_unread_tokenizer = whole_tokenizer and path.suffix != ".json"
        is_weights = path.suffix in (".safetensors", ".bin", ".pt", ".pth")
        if (name in read if is_weights else not is_unread_tokenizer) and is_pointer(path):
            raise ModelError(what_pulls(path))


def _deepspeed(folder: Path) -> str:
    """Return the call of the script that DeepSpeed puts beside its checkpoints, or of the same in the library.

    Older versions of the script write a file, and newer ones into a folder.
    """
    is_root = any(folder.glob("global_step*")) or (folder / "zero_to_fp32.py").is_file()
    root = folder if is_root else folder.parent
    inside = shlex.quote(str(root))
    script = root / "zero_to_fp32.py"
    if not script.is_file():
        return f"cd {inside} && python -m deepspeed.utils.zero_to_fp32 . . --safe_serialization"
    writes_folder = b"output_dir" in script.read_bytes()
    arguments = ". . --safe_serialization" if writes_folder else ". pytorch_model.bin"
    return f"cd {inside} && python zero_to_fp32.py {arguments}"


def _distributed(folder: Path) -> str:
    """Return the call that joins the shards.

    Accelerate and the Trainer write the weights below one more key, which only Accelerate's
    removes.
    """
    shard = next(folder.glob("*.distcp"), None) or next(folder.glob("*/*.distcp"))
    source = shlex.quote(str(shard.parent))
    if shard.parent.name.startswith("pytorch_model_fsdp"):
        return f"accelerate merge-weights {source} {shlex.quote(str(shard.parent.parent))}"
    file = shlex.quote(str(folder / "pytorch_model.bin"))
    return f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {source} {file}"


def _megatron(folder: Path) -> str:
    source = shlex.quote(str(folder))
    target = shlex.quote(f"{folder}-hf")
    script = "python examples/conversion/convert_checkpoints.py export --hf-model ORG/NAME"
    return f"{script} --megatron-path {source} --hf-path {target} (in Megatron-Bridge)"


def _by_transformers(option: str, library: str) -> Callable[[Path], str]:
    """Return how a call of transformers 4 reads what another library wrote, and writes safetensors."""

    def command(folder: Path) -> str:
        kind = "AutoModelForCausalLM"
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            stated = str(read_json(folder / "config.json")["architectures"][0])
            kind = (
                stated if stated.isidentifier() else kind
            )  # nothing but a name is put into a command
        read = f"M.from_pretrained('.', {option}=True)"
        code = f"from transformers import {kind} as M; {read}.save_pretrained('.')"
        return f'cd {shlex.quote(str(folder))} && python -c "{code}" (with transformers 4 and {library})'

    return command


FORMATS = (
    Format(
        "DeepSpeed",
        (
            "zero_to_fp32.py",
            "*zero_pp_rank_*_states.pt",
            "mp_rank_*_model_states.pt",
            "global_step*/*_states.pt",
        ),
        _deepspeed,
    ),
    Format(
        "Megatron",
        (
            "latest_checkpointed_iteration.txt",
            "mp_rank_*/model_optim_rng.pt",
            "iter_*/mp_rank_*",
            "common.pt",
        ),
        _megatron,
    ),
    Format("torch.distributed.checkpoint (FSDP)", ("*.distcp", "*/*.distcp"), _distributed),
    Format(
        "TensorFlow", ("tf_model*.h5", "*.ckpt.index"), _by_transformers("from_tf", "tensorflow")
    ),
    Format("Flax", ("flax_model*.msgpack",), _by_transformers("from_flax", "flax")),
)
