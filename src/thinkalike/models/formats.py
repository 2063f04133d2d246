"""Weights that are not read: pointers of Git LFS, and formats that one command converts.

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

# The files of weights in the order in which transformers looks for them, ...
WEIGHT_FILES = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
# ... with those of peft after them.
WEIGHTS_OF_ADAPTERS = ("adapter_model.safetensors", "adapter_model.bin")
IN_TURN = [*WEIGHT_FILES, *WEIGHTS_OF_ADAPTERS]

# The suffixes of files of weights.
SUFFIXES_OF_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")


class Format(NamedTuple):
    """A format of weights, and how to convert it.

    Attributes:
        name: Its name.
        signs: Patterns of files; a folder in this format has a file of one of them.
        command: Returns what makes a folder of safetensors or of PyTorch of such a folder.
    """

    name: str
    signs: Sequence[str]
    command: Callable[[Path], str]


def conversion(folder: Path) -> str:
    """Return a sentence that says how to convert the weights in a folder, or "".

    The sentence names the format, such as DeepSpeed's, and the command. "" means that the folder
    has no weights of a format that must be converted.
    """
    for weight_format in FORMATS:
        if any(any(folder.glob(sign)) for sign in weight_format.signs):
            command = weight_format.command(folder)
            return f"{folder} holds weights of {weight_format.name}; convert them: {command}"
    return ""


def check_no_pointer(files: Sequence[Path]) -> None:
    """Raise a ModelError for a file of a checkpoint that is a pointer of Git LFS.

    A clone without Git LFS leaves such pointers in the place of files. Only files that will be
    read are checked: of the weights those that transformers looks for first, JSON files, and other
    files of a tokenizer unless there is a whole tokenizer.json.

    Args:
        files: The files of one folder.
    """
    path_of_name = {path.name: path for path in files}
    weights_read = _weights_read(path_of_name)
    tokenizer_file = path_of_name.get("tokenizer.json")
    has_whole_tokenizer = tokenizer_file is not None and not is_pointer(tokenizer_file)
    for name, path in path_of_name.items():
        if path.suffix in SUFFIXES_OF_WEIGHTS:
            is_read = name in weights_read
        else:
            is_read = path.suffix == ".json" or not has_whole_tokenizer
        if is_read and is_pointer(path):
            raise ModelError(what_pulls(path))


def _weights_read(path_of_name: dict[str, Path]) -> set[str]:
    """Return the names of the files from which transformers or peft would read weights.

    It is the first file, in their order, that exists; for an index also the files that it lists,
    unless the index is a pointer of Git LFS, which holds no list. The set is empty if no file has
    one of the names that they look for.

    Args:
        path_of_name: The files of a folder by name.
    """
    file_that_is_read = None
    for name in IN_TURN:
        if name in path_of_name:
            file_that_is_read = name
            break
    if file_that_is_read is None:
        return set()
    names = {file_that_is_read}
    path = path_of_name[file_that_is_read]
    if file_that_is_read.endswith(".index.json") and not is_pointer(path):
        # A damaged index adds no names; it is reported when it is read.
        with contextlib.suppress(ValueError, AttributeError):
            index = read_json(path)
            names |= {str(file) for file in index.get("weight_map", {}).values()}
    return names


def _deepspeed_command(folder: Path) -> str:
    """Return the shell command that converts a DeepSpeed checkpoint.

    It runs the script zero_to_fp32.py that DeepSpeed puts beside its checkpoints, or the same
    script in the library if that is missing. Older versions of the script take the name of a file
    to write, and newer ones a folder.

    Args:
        folder: The folder with the script, or that of one step inside it.
    """
    is_root = any(folder.glob("global_step*")) or (folder / "zero_to_fp32.py").is_file()
    root = folder if is_root else folder.parent
    quoted_root = shlex.quote(str(root))
    script = root / "zero_to_fp32.py"
    if not script.is_file():
        module = "deepspeed.utils.zero_to_fp32"
        return f"cd {quoted_root} && python -m {module} . . --safe_serialization"
    arguments = ". pytorch_model.bin"
    if b"output_dir" in script.read_bytes():
        arguments = ". . --safe_serialization"
    return f"cd {quoted_root} && python zero_to_fp32.py {arguments}"


def _distributed_command(folder: Path) -> str:
    """Return the shell command that joins the shards of a torch.distributed checkpoint.

    Accelerate and the Trainer write a folder "pytorch_model_fsdp...", and store the weights under
    one more key. Only Accelerate's command removes this key.
    """
    # The folder holds shards, by which the format was recognised, or has a subfolder with them.
    shard = next(folder.glob("*.distcp"), None) or next(folder.glob("*/*.distcp"))
    source = shlex.quote(str(shard.parent))
    if shard.parent.name.startswith("pytorch_model_fsdp"):
        target = shlex.quote(str(shard.parent.parent))
        return f"accelerate merge-weights {source} {target}"
    file = shlex.quote(str(folder / "pytorch_model.bin"))
    module = "torch.distributed.checkpoint.format_utils"
    return f"python -m {module} dcp_to_torch {source} {file}"


def _megatron_command(folder: Path) -> str:
    """Return the shell command that converts a Megatron checkpoint, by Megatron-Bridge's script.

    The user has to put in the repository of the model for ORG/NAME.
    """
    source = shlex.quote(str(folder))
    target = shlex.quote(f"{folder}-hf")
    script = "python examples/conversion/convert_checkpoints.py export --hf-model ORG/NAME"
    return f"{script} --megatron-path {source} --hf-path {target} (in Megatron-Bridge)"


def _transformers_command(option: str, library: str) -> Callable[[Path], str]:
    """Return a function that makes the command by which transformers 4 converts a folder.

    Args:
        option: The option of `from_pretrained` that reads the format, such as "from_tf".
        library: The library that must also be installed, such as "tensorflow".
    """

    def command(folder: Path) -> str:
        """Return the shell command that converts the weights in `folder`."""
        class_name = _stated_class(folder)
        load = f"M.from_pretrained('.', {option}=True)"
        code = f"from transformers import {class_name} as M; {load}.save_pretrained('.')"
        call = f'cd {shlex.quote(str(folder))} && python -c "{code}"'
        return f"{call} (with transformers 4 and {library})"

    return command


def _stated_class(folder: Path) -> str:
    """Return the first class of transformers that the config.json of a folder states.

    It is AutoModelForCausalLM if config.json is missing, damaged, or states no class. The name
    goes into a shell command, so it is used only if it is an identifier.
    """
    with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
        stated = str(read_json(folder / "config.json")["architectures"][0])
        if stated.isidentifier():
            return stated
    return "AutoModelForCausalLM"


FORMATS = (
    Format(
        "DeepSpeed",
        (
            "zero_to_fp32.py",
            "*zero_pp_rank_*_states.pt",
            "mp_rank_*_model_states.pt",
            "global_step*/*_states.pt",
        ),
        _deepspeed_command,
    ),
    Format(
        "Megatron",
        (
            "latest_checkpointed_iteration.txt",
            "mp_rank_*/model_optim_rng.pt",
            "iter_*/mp_rank_*",
            "common.pt",
        ),
        _megatron_command,
    ),
    Format(
        "torch.distributed.checkpoint (FSDP)", ("*.distcp", "*/*.distcp"), _distributed_command
    ),
    Format(
        "TensorFlow",
        ("tf_model*.h5", "*.ckpt.index"),
        _transformers_command("from_tf", "tensorflow"),
    ),
    Format("Flax", ("flax_model*.msgpack",), _transformers_command("from_flax", "flax")),
)
