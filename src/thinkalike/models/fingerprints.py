"""What tells checkpoints apart before they are read."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path

from thinkalike.config import ModelConfig
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.digests import remembered_digest, tokenizer_fingerprint
from thinkalike.files import is_folder
from thinkalike.models.access import commit_of_model
from thinkalike.models.checkpoints import (
    READ_SUFFIXES,
    STEP,
    base_of,
    files_beside,
    folder_of,
    revisions_in,
    weight_map,
)
from thinkalike.models.config_json import read_config_json
from thinkalike.models.loading_errors import explaining_loading_errors
from thinkalike.shards.index import read_index, states_fingerprint

# A commit of the hub, as git names it.
COMMIT = re.compile(r"[0-9a-f]{40}")


def checkpoint_fingerprint(config: ModelConfig) -> str:
    """Return a text that is the same for the same checkpoint, and differs for any other one.

    - For a model of the hub it is the commit. If the model is in TransformerLens's old layout, the
      commit of its tokenizer follows.
    - For a folder or a file it is 16 digits of the SHA-256 of all files that loading may read. For
      an adapter, the fingerprint of its base is hashed as well.
    - For a folder of states (activations that a model computed earlier, which stand in its place)
      it is the fingerprint of the folder's index, a file that lists the digests of all others. If
      the index names a tokenizer without its fingerprint, that of the tokenizer follows.
    - For a model in memory it is the digest in its configuration.
    """
    if isinstance(config, LoadedModelConfig):
        return config.digest
    if config.holds_states:
        return _fingerprint_of_states(Path(str(config.path)))
    with explaining_loading_errors(config):
        folder = folder_of(config)
        if folder is None:  # the model is on the hub
            return _fingerprint_of_commits(config)
        digest = hashlib.sha256()
        for path in _files_read(config, folder):
            digest.update(path.name.encode())
            digest.update(bytes.fromhex(remembered_digest(path)))
        base = base_of(config)
        if base:
            digest.update(checkpoint_fingerprint(base).encode())
        return digest.hexdigest()[:16]


def _fingerprint_of_states(folder: Path) -> str:
    """Return the fingerprint of a folder of states, with that of its tokenizer if it names one.

    The fingerprint of a tokenizer may be in the index of the folder. Then it is part of the
    fingerprint of the folder already, and is not added.
    """
    from thinkalike.models.load import load_tokenizer

    index = read_index(folder)
    has_tokenizer = bool(index.tokenizer)
    if not has_tokenizer or index.tokenizer_fingerprint:
        return states_fingerprint(folder)
    tokenizer = load_tokenizer(index.tokenizer, beside=folder)
    return f"{states_fingerprint(folder)} {tokenizer_fingerprint(tokenizer)}"


def _fingerprint_of_commits(config: ModelConfig) -> str:
    """Return the commit of a model of the hub, with that of its tokenizer if it is elsewhere.

    Only a model in TransformerLens's old layout (the family "legacy") names a repository of its
    tokenizer. The two commits are separated by a space.
    """
    if COMMIT.fullmatch(config.revision or ""):
        commit = str(config.revision)
    else:
        commit = commit_of_model(config).sha
    if config.family != "legacy":
        return commit
    config_json = read_config_json(replace(config, revision=commit), str(config.hub_id))
    tokenizer_name = config_json.get("tokenizer_name")
    if not tokenizer_name:
        return commit
    tokenizer_commit = commit_of_model(
        replace(config, hub_id=str(tokenizer_name), revision=None)
    ).sha
    return f"{commit} {tokenizer_commit}"


def _files_read(config: ModelConfig, folder: Path) -> list[Path]:
    """Return the files that loading a checkpoint may read, in a fixed order.

    For a checkpoint of one file, they are this file, and its configuration and tokenizer beside
    it. In a folder, they are all files with one of READ_SUFFIXES. Other checkpoints of the same
    training run, in subfolders such as step64, are left out, except files in them that an index of
    weights names.

    Args:
        config: The configuration of the model.
        folder: The folder of the checkpoint, or its file.
    """
    if not is_folder(folder):
        return [folder, *files_beside(folder)]
    checkpoints_of_steps = [path for path in revisions_in(folder) if STEP.search(path.name)]
    named_files = set()
    for index in folder.glob("*.index.json"):
        named_files |= {folder / name for name in weight_map(index).values()}
    files = []
    for path in sorted(folder.rglob("*")):
        is_of_step = any(path.is_relative_to(step) for step in checkpoints_of_steps)
        may_be_read = path in named_files or not is_of_step
        if path.suffix in READ_SUFFIXES and path.is_file() and may_be_read:
            files.append(path)
    has_tokenizer = (folder / "tokenizer.json").exists()
    if config.revision and not has_tokenizer:  # a run may keep its tokenizer in the folder above
        files += files_beside(folder)
    return files
