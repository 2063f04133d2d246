"""Reading models: checkpoints of transformers, their tokenizers and adapters, and the legacy layout of TransformerLens.

Every weight must have been read: none missing, left over or of another shape.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import math
import re
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch
from zipfile import is_zipfile

import torch
from safetensors import safe_open
from torch import Tensor, nn

from thinkalike.config import ModelConfig
from thinkalike.digests import PROBES, read_json
from thinkalike.errors import ModelError, check_extra, listed, one_line
from thinkalike.files import is_folder
from thinkalike.hub import resolved
from thinkalike.models.bounds import check_adapter, check_growth, check_size
from thinkalike.models.families import DEPTHS, Family, heads_of, stated_quantization
from thinkalike.models.formats import IN_TURN, conversion
from thinkalike.models.gguf import OWN, cut_as_stated, gguf_said
from thinkalike.models.module_facts import (
    TOLERANCE,
    Checkpoint,
    embedding_of,
    first_tensor,
    longest_row,
    puts_bos,
    relative_error,
    sample_tokens,
    text_config,
)
from thinkalike.models.native_attention import without_hooks
from thinkalike.models.places import GIVE, WEIGHTS, is_gguf, located, weight_map
from thinkalike.models.plausible import TEXT
from thinkalike.models.proof import LONGEST_PROOF, check_values

log = logging.getLogger(__name__)

EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight", "lm_head.weight")
AGAIN = re.compile(r"\.(modules_to_save|original_module)\.")  # in names under which peft saves resized embeddings twice

# how LoRAs may begin whose base loses a part that is drawn anew, or nothing, when peft loads them
TOOK_OUT = re.compile(r"pissa_niter|lora_ga")

TRIGGER = 64  # tokens, at most, of a list in the settings of an adapter that it is tried on

# buffers that older versions saved and newer ones compute
BUFFERS = re.compile(r"(^|\.)(position_ids|token_type_ids|inv_freq|masked_bias|attn\.bias|attention\.bias)$")

POOLERS = re.compile(r"(^|\.)pooler\.")

# heads and poolers of other classes with the same body, which the class that is loaded does not have
HEADS = re.compile(
    r"^(lm_head|embed_out|cls|classifier|score|qa_outputs|v_head|multiple_choice_head|seq_relationship)\.|(^|\.)pooler\."
)


FLOATING = {"F64", "F32", "F16", "BF16"}  # the dtypes of weights, as safetensors calls them


def read_transformers(
    config: ModelConfig, family: Family, place: str, device: torch.device, dtype: torch.dtype, adapter: Path | None
) -> Checkpoint:
    """Read a model that `save_pretrained` wrote, with its own tokenizer, and merge the adapter of a folder into it.

    It runs as transformers runs it. TransformerLens's bridge computes every attention pattern, and puts BOS before
    every text, with which GPT-2 and Pythia were not trained.
    """
    import transformers

    kind = getattr(transformers, family.reading_class)
    options: dict[str, Any] = _placement(config, device)
    quantization: str = config.quantization or ""
    if is_gguf(place):
        if quantization:
            raise ModelError(f"{config.called} is quantised already; leave out model.quantization={quantization}")
        shape, quantization = gguf_said(Path(place))
        options |= {"config": shape, "quantization_config": transformers.GgufConfig(dequantize=True)}
    with (
        torch.random.fork_rng(devices=[]),
        patch("transformers.modeling_gguf_pytorch_utils.tqdm", lambda each, **_: each),
    ):
        torch.manual_seed(0)  # a head that nothing reads may be missing: equal checkpoints give equal modules
        body = [""] if family.predicts == "hidden" else None
        read = functools.partial(read_weights, kind, config, place, body, dtype=dtype, **options)
        if adapter is None:
            module, rows = read(), 0
        else:
            module, rows = run_adapted(lambda: _with_adapter(read(), adapter), adapter.name, TOLERANCE[dtype])
    own = str(adapter) if adapter and rows and any(adapter.glob("tokenizer*")) else place
    tokenizer, longest = read_tokenizer(config, own), longest_row(module)
    with_head = {head.class_name for head in heads_of(family.in_config_json)}
    has_head = family.predicts != "hidden" or type(module).__name__ in with_head
    if family.predicts == "states":
        module = part_with_states(module, config, family)
    return Checkpoint(_placed(module, options, device), tokenizer, longest, quantization, has_head)


def read_legacy(config: ModelConfig, place: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a language model in the layout of TransformerLens 1, with the tokenizer that it names."""
    from transformer_lens.model_bridge import TransformerBridge

    with _pinned(place, config.revision):
        bridge = TransformerBridge.boot_tl_legacy(place, device="cpu", dtype=dtype)
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        hooked = bridge(tokens)
        module = without_hooks(bridge.original_model.eval())
        error = relative_error(first_tensor(module(tokens)), hooked)
    if not error <= TOLERANCE[dtype]:  # NaN fails as well
        check_values(module, config.called)
        raise ModelError(f"{config.called}: without TransformerLens's hooks the logits differ by {error:.1e}")
    return Checkpoint(module.to(device=device, dtype=dtype), bridge.tokenizer, bridge.cfg.n_ctx)


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


def read_weights(
    kind: Any, config: ModelConfig, place: str, body: Sequence[str] | None = None, /, **options: Any
) -> Any:
    """Read the weights of a checkpoint of transformers, which draws missing ones at random, and check that all came.

    Buffers, and heads that are not used, may be left over. Where only the body must be complete and
    the checkpoint has no head, the body is returned.

    Args:
        kind: the class whose `from_pretrained` reads it, with these options.
        body: the beginnings of the parts below the head that must be complete; None: the head must be, too.
    """
    import transformers

    with _checked_while_read(place):
        module, loading = kind.from_pretrained(
            **located(place),
            revision=config.revision or "main",
            output_loading_info=True,
            trust_remote_code=False,  # else transformers asks on the screen
            ignore_mismatched_sizes=True,  # they are reported, and refused with the others
            **options,
        )
    check_one_set(Path(place))
    for name in (name for name in module.config.architectures or () if not hasattr(transformers, name)):
        own = type(module).__name__
        log.warning("%s is a %s, which transformers lacks, and runs as a %s", config.called, name, own)
    _warn_of_two_embeddings(module, config.called)
    missing = [name for name in loading["missing_keys"] if not BUFFERS.search(name)]
    stated = [getattr(transformers, name, None) for name in module.config.architectures or ()]
    is_other_class = not any(isinstance(module, each) for each in stated if isinstance(each, type))
    needed = ("",) if body is None else tuple(f"{module.base_model_prefix}.{part}".lstrip(".") for part in body)
    has_no_head = body == [""] and not all(name.startswith(needed) for name in missing)
    if has_no_head and is_other_class and stated and isinstance(stated[0], type):
        # such as the discriminator of ELECTRA
        return read_weights(stated[0], config, place, **options).base_model
    if module.base_model is module:  # a body, whose pooler no state passes through
        missing = [name for name in missing if not POOLERS.search(name)]
    faults = {
        "missing": [name for name in missing if name.startswith(needed)],
        "of another shape": {name for name, *_ in loading["mismatched_keys"] if name.startswith(needed)},
        "not expected": [n for n in loading["unexpected_keys"] if not (BUFFERS.search(n) or HEADS.search(n))],
    }
    if found := "; ".join(f"{fault}: {listed(sorted(names))}" for fault, names in faults.items() if names):
        whole = ("config.json describes", "give the whole checkpoint with its own config.json")
        source, remedy = ("fields describe", OWN) if is_gguf(place) else whole
        lacks_head_alone = not any(name.startswith(f"{module.base_model_prefix}.") for name in missing)
        if found.startswith("missing: ") and lacks_head_alone and module.base_model is not module:
            body_name = type(module.base_model).__name__
            remedy = f"if it has no head, write {body_name} under architectures in config.json"
        said = f"its weights are not those that its {source} ({found})"
        remedy = conversion(Path(place)) or remedy  # DeepSpeed leaves empty weights beside its own
        raise ModelError(f"cannot load model={config.called} from {place}: {said}; {remedy}")
    if has_no_head:
        log.warning("%s has no weights of a head, so it predicts no tokens, and has states alone", config.called)
        return module.base_model
    return module


@contextlib.contextmanager
def _checked_while_read(place: str) -> Iterator[None]:
    """Check what transformers reads of a checkpoint before it casts it, and what it draws anew before it does so."""
    from transformers import PreTrainedModel, modeling_utils

    convert = modeling_utils.convert_and_load_state_dict_in_model
    draw = PreTrainedModel._move_missing_keys_from_meta_to_device

    def checked(model: Any, state_dict: Mapping[str, Any], load_config: Any, **options: Any) -> Any:
        if load_config.hf_quantizer is None:
            check_dtypes(state_dict, place, {name.rpartition(".")[2] for name, _ in model.named_parameters()})
        else:
            _warn_of_plain_weights(model, state_dict, place)
        return convert(model=model, state_dict=state_dict, load_config=load_config, **options)

    def bounded(model: Any, missing: Any, *options: Any) -> None:
        drawn = [model.get_parameter_or_buffer(name) for name in missing - model.all_tied_weights_keys.keys()]
        drawn += [buffer for _, buffer in model.named_non_persistent_buffers()]
        check_size(sum(each.numel() for each in drawn), Path(place))
        draw(model, missing, *options)

    with (
        patch.object(modeling_utils, "convert_and_load_state_dict_in_model", checked),
        patch.object(PreTrainedModel, "_move_missing_keys_from_meta_to_device", bounded),
    ):
        yield


def _warn_of_plain_weights(model: Any, stored: Mapping[str, Any], place: str) -> None:
    """Say that no weight is stored as a quantisation leaves it, although the configuration states one."""
    dtypes = {_dtype_of(tensor) for tensor in stored.values()}
    stated = stated_quantization(model.config.to_dict())
    if stated and dtypes <= FLOATING:
        found = f"states that weights are quantised ({stated}), and all are stored as {listed(sorted(dtypes))}"
        log.warning("warning: %s: config.json %s; remove quantization_config if they are not", place, found)


def _warn_of_two_embeddings(module: Any, called: str) -> None:
    """Say that a checkpoint has a head with other values than its embedding, although its configuration ties them."""
    head = module.get_output_embeddings() if hasattr(module, "get_output_embeddings") else None
    if head is None or not getattr(text_config(module), "tie_word_embeddings", False):
        return
    weight = getattr(head, "weight", None)
    if weight is None or weight is module.get_input_embeddings().weight or weight.is_meta:
        return
    name = next((name for name, found in module.named_parameters() if found is weight), "its head")
    found = f"config.json says tie_word_embeddings=true, and {name} is stored with other values than the embedding"
    log.warning("warning: %s: %s, and runs with these; write false, or leave it out of the file", called, found)


def check_dtypes(stored: Mapping[str, Any], place: object, kinds: Collection[str] = ("weight", "bias")) -> None:
    """Raise a ModelError for a weight that is stored as whole numbers, or in 8 bits without a quantisation.

    Cast to a floating type it is an ordinary number, and the model another one.

    Args:
        stored: tensors, or slices of a file of safetensors.
        kinds: the last parts of the names of parameters; all else are buffers, which may be whole numbers.
    """
    for name, tensor in stored.items():
        dtype = _dtype_of(tensor)
        if dtype in FLOATING or name.rpartition(".")[2] not in kinds or BUFFERS.search(name):
            continue
        raise ModelError(
            f"{place}: {name} is stored as {dtype}, and no quantisation is stated that says what its numbers mean; "
            "give the checkpoint before it was quantised, or its config.json with quantization_config"
        )


def _dtype_of(tensor: Any) -> str:
    """Return the dtype of a tensor or of a slice of a file, as safetensors calls it where it is floating."""
    dtype = tensor.get_dtype() if hasattr(tensor, "get_dtype") else str(tensor.dtype).removeprefix("torch.")
    return {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(dtype, dtype)


def check_one_set(folder: Path) -> None:
    """Say which weights of a folder are passed over; those that differ by more than a dtype are a ModelError.

    So is a tensor that two files of one index hold with different values, of which either may be read, and one that is
    not in the file that the index names.
    """
    parts = {name: _index_of(folder / name) for name in IN_TURN if (folder / name).is_file()}
    if not parts:
        return
    (first, index), *others = parts.items()
    seen, own = dict[str, Tensor](), {*index.values()}
    for part in sorted(own):
        held = _tensors_in(folder / part)
        if lacked := sorted(name for name, where in index.items() if where == part and name and name not in held):
            said = f"{first} says that {part} holds {listed(lacked)}, and it does not"
            raise ModelError(f"{folder}: {said}; take the index and all of its files from one revision")
        for name in held.keys() & seen.keys():
            if not torch.equal(seen[name], held[name]):
                raise ModelError(f"{folder}: two files of {first} hold {name} with different values; remove one")
        seen |= held
    for name, theirs in others:
        try:
            y = {name: each for part in {*theirs.values()} for name, each in _tensors_in(folder / part).items()}
        except Exception:  # of whatever lies there, such as a pointer of Git LFS; what is read is checked elsewhere
            continue
        common = seen.keys() & y.keys()
        lower = {key: min(seen[key].dtype, y[key].dtype, key=lambda dtype: dtype.itemsize) for key in common}
        if not all(torch.equal(seen[key].to(lower[key]), y[key].to(lower[key])) for key in common):
            raise ModelError(f"{folder} holds two sets of weights that differ, {first} and {name}; remove one of them")
    if unread := {path.name for each in (*WEIGHTS, "adapter_model.*") for path in folder.glob(each)} - own:
        log.warning("weights that are not read lie in %s: %s", folder, listed(sorted(unread)))


def _index_of(file: Path) -> dict[str, str]:
    """Return the file of each tensor, as an index says; what is no index is a file itself, of tensors without names."""
    return weight_map(file) if file.suffix == ".json" else {"": file.name}


def _tensors_in(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a file, which are mapped and not read; nothing in them can run code."""
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zipfile(path))  # type: ignore[no-any-return]


def _with_adapter(module: Any, folder: Path) -> Adapted:
    """Return a module with the adapter of a folder."""
    check_extra("peft", ["peft"], f"{folder} is an adapter")
    from peft import PeftModel, get_peft_model_state_dict, load_peft_weights, set_peft_model_state_dict

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what peft says of missing weights is checked here
        try:
            check_one_set(folder)
            given = load_peft_weights(str(folder), device="cpu")
            given = {name: each for name, each in given.items() if AGAIN.sub(".", name) not in given.keys() - {name}}
            check_dtypes(given, folder, {name.rpartition(".")[2] for name in given})
            check_adapter(folder, [tuple(each.shape) for each in given.values()], dict(module.named_modules()))
            known = len(embedding_of(module))
            rows = max((len(weight) for name, weight in given.items() if name.endswith(EMBEDDINGS)), default=0)
            if rows > known:
                module.resize_token_embeddings(rows, mean_resizing=False)
            whole = PeftModel.from_pretrained(module, str(folder))
            found: Any = set_peft_model_state_dict(whole, given)
        except (RuntimeError, ValueError, LookupError, TypeError, AttributeError, re.error) as error:
            said = f"the adapter cannot be put on its base ({one_line(error)})"
            raise ModelError(f"{folder.name}: {said}; check its adapter_config.json, or {GIVE}") from error
        settings = whole.active_peft_config
        _check_mergeable(settings, folder.name)
        if TOOK_OUT.match(start := str(getattr(settings, "init_lora_weights", ""))):
            raise ModelError(
                f"{folder.name}: with init_lora_weights={start} its training took a part out of the base that the "
                "adapter does not hold; save it with path_initial_model_for_weight_conversion"
            )
        outputs = _outputs(whole, _adapter_samples(whole), folder.name)
        own = get_peft_model_state_dict(whole, save_embedding_layers=False)
        missing = {name for name in own.keys() - given.keys() if not name.endswith(EMBEDDINGS)}
        if differing := {*found.unexpected_keys} | missing:
            names = listed(sorted(differing))
            raise ModelError(f"{folder.name}: the adapter and its base do not have the same weights ({names}); {GIVE}")
    return Adapted(whole, rows, outputs)


class Adapted(NamedTuple):
    """A model with an adapter as PEFT runs it."""

    whole: Any  # the PeftModel
    rows: int  # of the adapter's embedding; 0: it has none
    outputs: list[Tensor]  # for `_adapter_samples`, before anything was read of the model


def run_adapted(make: Callable[[], Adapted], called: str, allowed: float) -> tuple[Any, int]:
    """Return the module that runs a model with an adapter, and the rows of the adapter's embedding.

    The adapter is merged into the weights. Where it cannot be merged, or merging moves the outputs of PEFT's own model
    by more than is `allowed`, the layers of PEFT stay in place. Either way the module must give what PEFT's model does,
    since an adapter may act beyond its layers, such as after certain tokens only.

    Args:
        make: returns the model with its adapter, new each time.

    Raises:
        ModelError: PEFT's model cannot run on tokens alone, or does what its layers do not.
    """
    adapted = make()
    if any(output.isnan().any() for output in adapted.outputs):
        raise ModelError(
            f"{called}: the model with its adapter gives logits that are not a number (NaN); check "
            "the adapter's weights and the settings that scale them, such as lora_alpha"
        )
    settings, samples = adapted.whole.active_peft_config, _adapter_samples(adapted.whole)

    def error_of(module: Any) -> float:
        pairs = zip(_outputs(module, samples, called), adapted.outputs, strict=True)
        return max(relative_error(actual, expected) for actual, expected in pairs)

    module: Any = None
    try:
        module = adapted.whole.merge_and_unload()
        error = error_of(module)
        why = f"that changes logits by {error:.1e} of the largest"
    except ModelError:
        raise
    except Exception as failure:  # whatever a kind of adapter raises, such as a bias where the base has none
        error, why = math.inf, one_line(failure)
    if error <= allowed:
        return module, adapted.rows
    log.warning("%s is not merged: %s", called, why)
    module = make().whole.get_base_model()
    if not (error := error_of(module)) <= allowed:
        tokens = next(iter(_token_lists(settings, sys.maxsize)), None)
        condition = f" with {tokens}" if tokens else ""
        raise ModelError(
            f"{called}: an adapter of the kind {settings.peft_type.value}{condition} does more in PEFT than its layers "
            f"do (logits differ by {error:.1e} of the largest), so it cannot be cut at blocks; give its base"
        )
    return module, adapted.rows


def live_adapter(model: Any, called: str) -> Any:
    """Return the module that runs a copy of a PeftModel in memory, see `run_adapted`."""
    _check_mergeable(model.active_peft_config, called)

    def make() -> Adapted:
        whole = deepcopy(model)
        return Adapted(whole, 0, _outputs(whole, _adapter_samples(whole), called))

    module, _ = run_adapted(make, called, TOLERANCE[embedding_of(model.get_base_model()).dtype])
    return module


def _check_mergeable(settings: Any, called: str) -> None:
    if settings.is_prompt_learning:
        raise ModelError(f"{called}: an adapter of the kind {settings.peft_type.value} cannot be merged")


def _adapter_samples(whole: Any) -> list[Tensor]:
    """Return rows of tokens for an adapter: at random, and each list of tokens in its settings among such tokens."""
    embedding, longest = embedding_of(whole.get_base_model()), longest_row(whole) or LONGEST_PROOF
    rows = sample_tokens(len(embedding), longest)
    samples = [rows]
    for tokens in _token_lists(whole.active_peft_config, len(embedding)).values():
        row = torch.cat([rows[0, :4], torch.tensor(tokens[:TRIGGER]), rows[1, :4]])
        samples.append(row[None, :longest])
    return [sample.to(embedding.device) for sample in samples]


def _token_lists(settings: Any, vocabulary: int) -> dict[str, list[int]]:
    """Return the settings of an adapter that may be lists of tokens, such as those that invoke it, by name."""
    lists = {name: value for name, value in vars(settings).items() if isinstance(value, list) and value}
    return {
        name: value
        for name, value in lists.items()
        if all(type(entry) is int and 0 <= entry < vocabulary for entry in value)
    }


def _outputs(module: Any, samples: Sequence[Tensor], called: str) -> list[Tensor]:
    """Return the outputs of a model of transformers or PEFT for rows of tokens."""
    is_pair = bool(getattr(module.config, "is_encoder_decoder", False))
    outputs: list[Tensor] = []
    try:
        with torch.no_grad():
            for tokens in samples:
                decoder = {"decoder_input_ids": tokens} if is_pair else {}
                outputs.append(first_tensor(module.eval()(input_ids=tokens, **decoder)).clone())
    except Exception as error:  # such as an argument beside the tokens that it needs
        said = f"{type(error).__name__}: {one_line(error)}"
        raise ModelError(
            f"{called}: the model with its adapter cannot run on tokens alone ({said}); give its base"
        ) from error
    return outputs


def read_tokenizer(config: ModelConfig, place: str) -> Any:
    """Read the tokenizer of a checkpoint, which must have one: transformers would make up one without words."""
    from transformers import AutoTokenizer, PreTrainedTokenizerFast
    from transformers.utils import cached_file

    if is_gguf(place):
        with tempfile.TemporaryDirectory() as aside:  # beside a tokenizer.json, transformers reads that instead
            alone = Path(aside, Path(place).name)
            alone.symlink_to(Path(place).absolute())
            return cut_as_stated(PreTrainedTokenizerFast.from_pretrained(**located(str(alone))), Path(place))
    revision = config.revision or "main"
    names = {"tokenizer.json"}
    optional: dict[str, Any] = {"revision": revision, "_raise_exceptions_for_missing_entries": False}
    file = cached_file(place, "tokenizer.json", **optional)
    if file:
        check_growth(Path(file))
    try:
        tokenizer = without_dropout(AutoTokenizer.from_pretrained(place, revision=revision), config.called)
    except ValueError as error:
        if "backend tokenizer" not in str(error):
            raise
    else:
        names |= {*getattr(tokenizer, "vocab_files_names", {}).values()}
        if any(cached_file(place, name, **optional) for name in sorted(names, reverse=True)):
            if file and not _cuts_as(tokenizer, file):
                kind = type(tokenizer).__name__
                tokenizer = without_dropout(PreTrainedTokenizerFast.from_pretrained(place, revision=revision))
                which = "which is read" if _cuts_as(tokenizer, file) else "as other files of the tokenizer add to it"
                log.warning("%s: %s cuts texts otherwise than tokenizer.json, %s", config.called, kind, which)
            file = cached_file(place, "tokenizer_config.json", **optional)
            said = read_json(Path(file)).get("add_bos_token") if file else None
            if config.bos is None and said in (True, False) and said != puts_bos(tokenizer):
                no_effect = f"add_bos_token={said} has no effect on its tokenizer; model.bos decides"
                log.warning("%s: %s", config.called, no_effect)
            return tokenizer
    if config.revision and is_folder(place):  # a run may keep its tokenizer beside its checkpoints
        return read_tokenizer(replace(config, revision=None), str(Path(place).parent))
    raise ModelError(f"{config.called}: {place} has no tokenizer that transformers reads ({', '.join(sorted(names))})")


def without_dropout(tokenizer: Any, called: str = "") -> Any:
    """Set the dropout of a tokenizer of BPE to none, with a warning if it is called by a name.

    With dropout the same text would have other ids at every call.
    """
    dropout = dropout_of(tokenizer)
    if dropout:
        tokenizer.backend_tokenizer.model.dropout = None
        if called:
            log.warning(
                "%s: dropout=%g of its tokenizer is left out: with it a text has other ids each time", called, dropout
            )
    return tokenizer


def dropout_of(tokenizer: Any) -> float | None:
    """Return the share of merges that a tokenizer of BPE leaves out at random, None if it has no such setting."""
    return getattr(getattr(getattr(tokenizer, "backend_tokenizer", None), "model", None), "dropout", None)


def _cuts_as(tokenizer: Any, file: str) -> bool:
    """Return whether a tokenizer cuts texts as its file says, which a class of transformers may overrule."""
    from tokenizers import Tokenizer

    own = Tokenizer.from_file(file)
    if hasattr(own.model, "dropout"):
        own.model.dropout = None
    own.no_truncation()
    own.no_padding()
    own.encode_special_tokens = bool(getattr(tokenizer, "split_special_tokens", False))
    texts = (TEXT, " 2023", f"a{tokenizer.eos_token}b", *PROBES)
    return all(list(tokenizer(text)["input_ids"]) == own.encode(text).ids for text in texts)


def blocks_of(module: Any, name: str) -> str:
    """Return the path from a module of transformers to the blocks of its text model; the proof at load checks it.

    It is the list with as many entries as the configuration of the text model has layers; of several, the one with
    most weights.
    """
    root = module.both.get_decoder() if isinstance(module, DecoderSide) else module
    shape, side = root.config.get_text_config(), "encoder" if "Encoder" in type(root).__name__ else "decoder"
    sizes = (getattr(shape, key, None) for key in (f"{side}_layers", *DEPTHS))
    depth = next((number for number in sizes if isinstance(number, int)), None)
    # A tower for images may be as deep as the text model, which transformers declares as the decoder. Where the
    # decoder of a class is something else, such as an unembedding, it holds no list of blocks.
    text_model = root.get_decoder() if hasattr(root, "get_decoder") else root
    fitting = _lists_within(module, text_model, depth) or _lists_within(module, root, depth)
    if not fitting:
        raise ModelError(f"{name}: {type(root).__name__} has no list of {depth} blocks, so it cannot be cut at them")
    return max(fitting, key=lambda path: fitting[path])


def _lists_within(module: nn.Module, part: nn.Module, length: int | None) -> dict[str, int]:
    """Return the lists of `length` modules in a part of a module, by path, with the number of their weights."""
    inside = set(part.modules())
    return {
        path: sum(weight.numel() for weight in blocks.parameters())
        for path, blocks in module.named_modules()
        if isinstance(blocks, nn.ModuleList) and len(blocks) == length and blocks in inside
    }


def _placement(config: ModelConfig, device: torch.device) -> dict[str, Any]:
    """Return the options of transformers' `from_pretrained` that bring weights to where they are used."""
    options: dict[str, Any] = {}
    if config.quantization:
        from transformers import BitsAndBytesConfig

        in_8bit = config.quantization == "8bit"
        compute = {} if in_8bit else {"bnb_4bit_compute_dtype": getattr(torch, config.dtype)}
        options["quantization_config"] = BitsAndBytesConfig(load_in_8bit=in_8bit, load_in_4bit=not in_8bit, **compute)
    if config.device_map is not None:
        options["device_map"] = {"": "disk"} if config.device_map == "disk" else config.device_map
        options["offload_folder"] = tempfile.mkdtemp(prefix="thinkalike-offload-")  # `_placed` removes it
    elif device.type == "cuda":  # shard by shard, and never whole in the memory of the machine
        options["device_map"] = {"": device}
    return options


def _placed(module: Any, options: dict[str, Any], device: torch.device) -> Any:
    """Return a module on its device, unless its weights were laid out as `_placement` says.

    Every weight keeps the dtype in which transformers read it, since some stay in float32 on purpose.
    """
    if folder := options.get("offload_folder"):
        weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    if folder or getattr(module, "hf_quantizer", None) is not None:
        return module
    return module.to(device)


def part_with_states(module: Any, config: ModelConfig, family: Family) -> nn.Module:
    """Return what has the states of a model whose head is not read: its body, or a side of an encoder-decoder.

    The side is that of `model.side`, which need not be given where there is only an encoder.
    """
    body = module.base_model
    if not family.has_sides:
        return body  # type: ignore[no-any-return]
    has_decoder = body.get_decoder() is not body
    if config.side == "decoder" and not has_decoder:
        raise ModelError(f"{config.called} is an encoder without a decoder: remove model.side=decoder")
    if config.side == "encoder" or not has_decoder:
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
        return self.both.get_input_embeddings()

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        return self.both.base_model(  # type: ignore[no-any-return]
            input_ids=tokens,
            attention_mask=attention_mask,
            decoder_input_ids=tokens,
            decoder_attention_mask=attention_mask,
        )[0]
