"""Reading models: checkpoints of transformers, and the legacy layout of TransformerLens.

Every weight must have been read: none missing, left over or of another shape.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import shutil
import tempfile
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, cast
from unittest.mock import patch

import torch
from torch import Tensor, nn

from thinkalike.advice import named_setting
from thinkalike.config import ModelConfig
from thinkalike.errors import ModelError, listed
from thinkalike.hub import resolved
from thinkalike.models.adapters import run_adapted, with_adapter
from thinkalike.models.bounds import check_claimed_size
from thinkalike.models.checkpoints import is_gguf, path_arguments
from thinkalike.models.families import Family, heads_of, stated_quantization
from thinkalike.models.formats import conversion
from thinkalike.models.gguf import all_tensors_read, gguf_config
from thinkalike.models.gguf_header import TAKE_ORIGINAL
from thinkalike.models.module_facts import (
    TOLERANCE,
    Checkpoint,
    config_of_text_model,
    first_tensor,
    longest_row,
    relative_error,
    sample_tokens,
)
from thinkalike.models.proof import check_finite_weights
from thinkalike.models.stored_weights import (
    BUFFERS,
    FLOATING,
    StoredTensor,
    check_dtypes,
    check_weight_files_agree,
    dtype_name,
)
from thinkalike.models.survey import without_hooks
from thinkalike.models.tokenizer_reading import read_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedModel
    from transformers.modeling_utils import LoadStateDictConfig

log = logging.getLogger(__name__)

# The names of weights of poolers, through which no state passes.
POOLERS = re.compile(r"(^|\.)pooler\.")

# The names of weights of heads and poolers that other classes with the same body have, and the
# class that is loaded may lack.
HEADS = re.compile(
    r"^(lm_head|embed_out|cls|classifier|score|qa_outputs|v_head|multiple_choice_head|"
    r"seq_relationship)\.|(^|\.)pooler\."
)


class LoadingInfo(TypedDict):
    """What `from_pretrained` says of the weights that it read, by their names.

    Mismatched weights come with two shapes.
    """

    missing_keys: Collection[str]
    unexpected_keys: Collection[str]
    mismatched_keys: Collection[tuple[str, torch.Size, torch.Size]]


def read_transformers(
    config: ModelConfig,
    family: Family,
    place: str,
    device: torch.device,
    dtype: torch.dtype,
    adapter: Path | None,
) -> Checkpoint:
    """Read a model that `save_pretrained` wrote, with its tokenizer, and an adapter of a folder.

    It runs as transformers runs it. TransformerLens's bridge computes every attention pattern, and
    puts BOS before every text, with which GPT-2 and Pythia were not trained.

    Args:
        config: The configuration of the model.
        family: Its family.
        place: The folder, repository or GGUF file.
        device, dtype: Where its weights go, and in which dtype.
        adapter: The folder of an adapter that is merged into it.

    Raises:
        ModelError: Weights, tokenizer or adapter do not fit.
    """
    import transformers

    model_class = getattr(transformers, family.reading_class)
    options = _placement_options(config, device)
    quantization: str = config.quantization or ""
    if is_gguf(place):
        if quantization:
            raise ModelError(
                f"{config.called} is quantised already; leave out "
                f"{named_setting('model.quantization', quantization)}"
            )
        gguf_settings, quantization = gguf_config(Path(place))
        options["config"] = gguf_settings
        options["quantization_config"] = transformers.GgufConfig(dequantize=True)
    # All below the head must be complete of a model whose head may be missing.
    body = [""] if family.predicts == "hidden" else None
    read_model = functools.partial(
        read_weights, model_class, config, place, body, dtype=dtype, **options
    )
    rows_of_adapter = 0
    with (
        torch.random.fork_rng(devices=[]),
        # Without the progress bar of transformers.
        patch("transformers.modeling_gguf_pytorch_utils.tqdm", lambda tensors, **_: tensors),
    ):
        # A head that nothing reads may be missing: equal checkpoints give equal modules.
        torch.manual_seed(0)
        if adapter is None:
            module = read_model()
        else:
            module, rows_of_adapter = run_adapted(
                lambda: with_adapter(read_model(), adapter), adapter.name, TOLERANCE[dtype]
            )

    tokenizer_place = place
    adapter_has_embedding = rows_of_adapter > 0
    if adapter and adapter_has_embedding and any(adapter.glob("tokenizer*")):
        tokenizer_place = str(adapter)  # it has the tokens of the adapter's embedding
    tokenizer = read_tokenizer(config, tokenizer_place)
    longest = longest_row(module)
    classes_with_head = {head.class_name for head in heads_of(family.in_config_json)}
    has_head = family.predicts != "hidden" or type(module).__name__ in classes_with_head
    if family.predicts == "states":
        module = part_with_states(module, config, family)
    placed = _moved_to_device(module, options, device)
    return Checkpoint(placed, tokenizer, longest, quantization, has_head)


def read_legacy(
    config: ModelConfig, place: str, device: torch.device, dtype: torch.dtype
) -> Checkpoint:
    """Read a language model in the layout of TransformerLens 1, with the tokenizer that it names.

    TransformerLens loads it with its hooks. They are removed, and the logits for sample tokens
    must stay the same.

    Args:
        config: The configuration of the model.
        place: The repository of the hub.
        device, dtype: Where the weights go, and in which dtype.

    Raises:
        ModelError: Without the hooks the logits differ, or a weight is not finite.
    """
    from transformer_lens.model_bridge import TransformerBridge

    with _loader_pinned_to_commit(place, config.revision):
        bridge = TransformerBridge.boot_tl_legacy(place, device="cpu", dtype=dtype)
    tokens = sample_tokens(bridge.cfg.d_vocab, bridge.cfg.n_ctx or 16)
    with torch.no_grad():
        logits_with_hooks = bridge(tokens)
        module = without_hooks(bridge.original_model.eval())
        error = relative_error(first_tensor(module(tokens)), logits_with_hooks)
    if not error <= TOLERANCE[dtype]:  # NaN fails as well
        check_finite_weights(module, config.called)  # raises if a NaN is the cause
        raise ModelError(
            f"{config.called}: without TransformerLens's hooks the logits differ by {error:.1e}"
        )
    return Checkpoint(module.to(device=device, dtype=dtype), bridge.tokenizer, bridge.cfg.n_ctx)


@contextlib.contextmanager
def _loader_pinned_to_commit(repository: str, revision: str | None) -> Iterator[None]:
    """Make TransformerLens's legacy loader read a repository at one commit in this context.

    By itself the loader always reads the branch `main`. So two functions of huggingface_hub are
    replaced while the context is open: the one that downloads a file, which gets the commit for
    files of `repository`, and the one that lists files. Files of other repositories, such as that
    of the tokenizer, are downloaded as usual.

    Args:
        repository: The repository of the hub that holds the model.
        revision: The branch, tag or commit; None: the branch `main`.
    """
    import huggingface_hub

    download: Callable[..., str] = huggingface_hub.hf_hub_download
    commit = resolved("model", repository, revision)

    def download_pinned(repo_id: str, filename: str, **options: object) -> str:
        """Download a file, of the commit if it is one of `repository`."""
        if repo_id == repository:
            options["revision"] = commit.sha
        return download(repo_id, filename, **options)

    with (
        patch.object(huggingface_hub, "hf_hub_download", download_pinned),
        patch.object(
            huggingface_hub.HfApi, "list_repo_files", lambda *_, **__: list(commit.files)
        ),
    ):
        yield


def read_weights(
    model_class: type[PreTrainedModel],
    config: ModelConfig,
    place: str,
    body: Sequence[str] | None = None,
    /,
    **options: object,
) -> PreTrainedModel:
    """Read the weights of a checkpoint of transformers, and check that none is missing.

    transformers would draw missing weights at random. Buffers, and heads that are not used, may be
    left over. If only the body must be complete, and the checkpoint has no head, the body is
    returned.

    Args:
        model_class: The class whose `from_pretrained` reads it, with these options.
        config: The configuration of the model.
        place: The folder, repository or GGUF file.
        body: The beginnings of the names below the head that must be complete; None: the head must
            be, too.

    Raises:
        ModelError: Weights are missing, left over or of another shape.
    """
    module, loading = _read_by_transformers(model_class, config, place, options)
    check_weight_files_agree(Path(place))
    _warn_of_unknown_classes(module, config.called)

    missing = [name for name in loading["missing_keys"] if not BUFFERS.search(name)]
    # The beginnings of the names of weights that must be complete; "" begins every name.
    needed: tuple[str, ...] = ("",)
    if body is not None:
        prefix = module.base_model_prefix
        needed = tuple(f"{prefix}.{beginning}".lstrip(".") for beginning in body)
    may_lack_head = body == [""]
    lacks_head = may_lack_head and not all(name.startswith(needed) for name in missing)
    if lacks_head:
        stated_class = _stated_class_of_another_head(module)
        # It is read again as the class that config.json states, such as the discriminator of
        # ELECTRA, of which no weight may be missing.
        if stated_class is not None:
            return read_weights(stated_class, config, place, **options).base_model

    is_body = module.base_model is module
    if is_body:
        missing = [name for name in missing if not POOLERS.search(name)]
    module_names = {path for path, _ in module.named_modules()}
    unexpected = set()
    for name in loading["unexpected_keys"]:
        # A tensor of a head that the model has is none of another class.
        is_of_other_head = HEADS.search(name) and name.rpartition(".")[0] not in module_names
        if not BUFFERS.search(name) and not is_of_other_head:
            unexpected.add(name)
    faults = {
        "missing": {name for name in missing if name.startswith(needed)},
        "of another shape": {
            name for name, *_ in loading["mismatched_keys"] if name.startswith(needed)
        },
        "not expected": unexpected,
    }
    if any(faults.values()):
        _refuse_faults(faults, missing, module, config, place)
    _warn_of_two_embeddings(module, config.called)
    if lacks_head:
        log.warning(
            "%s has no weights of a head, so it predicts no tokens, and has states alone",
            config.called,
        )
        return module.base_model
    return module


def _read_by_transformers(
    model_class: type[PreTrainedModel],
    config: ModelConfig,
    place: str,
    options: Mapping[str, object],
) -> tuple[PreTrainedModel, LoadingInfo]:
    """Return a model as `from_pretrained` reads it, and a report on the weights that do not fit.

    The report lists weights that are missing, left over or of another shape; nothing is refused
    for them here.

    Args:
        model_class: The class whose `from_pretrained` reads the checkpoint.
        config: The configuration of the model.
        place: The folder, repository or GGUF file.
        options: Further arguments of `from_pretrained`.

    Raises:
        ModelError: Stored dtypes, or the size that the configuration claims, are not plausible, or
            a GGUF file has a tensor that the model lacks.
    """
    # The contexts check stored dtypes and the number of missing weights before these are made, and
    # that a GGUF file has no tensor beside those of the model and of heads.
    with _checked_while_read(place), all_tensors_read(place, HEADS):
        return model_class.from_pretrained(
            **path_arguments(place),
            revision=config.revision or "main",
            output_loading_info=True,
            trust_remote_code=False,  # else transformers asks on the screen whether to run it
            ignore_mismatched_sizes=True,  # they are in the report, and the caller refuses them
            **options,
        )


def _warn_of_unknown_classes(module: PreTrainedModel, called: str) -> None:
    """Warn of each class that config.json states and transformers lacks.

    Args:
        module: The model, which was loaded as a different class.
        called: The model's name in the warning.
    """
    import transformers

    for name in module.config.architectures or ():
        if not hasattr(transformers, name):
            log.warning(
                "%s is a %s, which transformers lacks, and runs as a %s",
                called,
                name,
                type(module).__name__,
            )


def _stated_class_of_another_head(module: PreTrainedModel) -> type[PreTrainedModel] | None:
    """Return the first class that config.json states, if the model was read as another class.

    None means that the model is of one of the classes that config.json states, that it states
    none, or that transformers lacks the first of them.
    """
    import transformers

    class_names = module.config.architectures or ()
    stated_classes = [getattr(transformers, name, None) for name in class_names]
    known_classes = tuple(stated for stated in stated_classes if isinstance(stated, type))
    if isinstance(module, known_classes) or not stated_classes:
        return None
    first_class = stated_classes[0]
    return first_class if isinstance(first_class, type) else None


def _refuse_faults(
    faults: Mapping[str, set[str]],
    missing: Sequence[str],
    module: PreTrainedModel,
    config: ModelConfig,
    place: str,
) -> None:
    """Raise a ModelError that lists the weights that do not fit a model, and says what to do.

    Args:
        faults: The names of the weights by what is wrong with them, such as "missing".
        missing: The names of all missing weights. Under "missing", `faults` leaves out those that
            a model can do without, such as a head that is tied to the embedding.
        module: The model that the checkpoint was read into.
        config: The configuration of the model.
        place: The folder, repository or GGUF file that was read.
    """
    phrases = []
    for fault, names in faults.items():
        if names:
            phrases.append(f"{fault}: {listed(sorted(names))}")
    source = "config.json describes"
    remedy = "give the whole checkpoint with its own config.json"
    if is_gguf(place):
        source = "fields describe"
        remedy = TAKE_ORIGINAL
    prefix_of_body = f"{module.base_model_prefix}."
    is_only_head_missing = not any(name.startswith(prefix_of_body) for name in missing)
    has_head = module.base_model is not module  # `base_model` is the model without its head
    if faults["missing"] and is_only_head_missing and has_head:
        body_name = type(module.base_model).__name__
        remedy = f"if it has no head, write {body_name} under architectures in config.json"
    # A folder of a program such as DeepSpeed, which leaves empty weights in the format of
    # transformers beside its own, must be converted first.
    remedy = conversion(Path(place)) or remedy
    raise ModelError(
        f"cannot load model={config.called} from {place}: its weights are not those that its "
        f"{source} ({'; '.join(phrases)}); {remedy}"
    )


@contextlib.contextmanager
def _checked_while_read(place: str) -> Iterator[None]:
    """Check what transformers reads of a checkpoint while the context is open.

    Stored dtypes are checked before weights are cast, and the number of weights that no file holds
    before they are drawn at random, since a false config.json may claim any number of them.
    """
    from transformers import PreTrainedModel, modeling_utils

    convert = modeling_utils.convert_and_load_state_dict_in_model
    draw_missing = PreTrainedModel._move_missing_keys_from_meta_to_device
    are_equal = modeling_utils._tied_params_are_equal

    def convert_checked(
        model: PreTrainedModel,
        state_dict: Mapping[str, StoredTensor],
        load_config: LoadStateDictConfig,
        **options: object,
    ) -> object:
        """Check the stored dtypes and values, and convert as transformers does."""
        if load_config.hf_quantizer is None:
            last_names = {name.rpartition(".")[2] for name, _ in model.named_parameters()}
            check_dtypes(state_dict, place, last_names)
        # A GGUF file states no quantisation as a whole: each of its tensors has a type.
        if not is_gguf(place):
            _warn_of_plain_weights(model, state_dict, place)
        with _one_source_of_each_weight(state_dict, place):
            return convert(model=model, state_dict=state_dict, load_config=load_config, **options)

    def draw_bounded(model: PreTrainedModel, missing: AbstractSet[str], *options: object) -> None:
        """Check how much memory missing weights would take, and draw them as transformers does.

        Weights that the checkpoint lacks are drawn at random.
        """
        # A missing weight that is tied to another one takes no memory of its own.
        names = missing - model.all_tied_weights_keys.keys()
        drawn = [model.get_parameter_or_buffer(name) for name in names]
        drawn += [buffer for _, buffer in model.named_non_persistent_buffers()]
        check_claimed_size(sum(tensor.numel() for tensor in drawn), Path(place))
        draw_missing(model, missing, *options)

    def can_be_tied(source: Tensor, target: Tensor) -> bool:
        # A weight of another shape than config.json describes was not read, and has no values.
        if source.is_meta or target.is_meta:
            return False
        return are_equal(source, target)

    with (
        patch.object(modeling_utils, "_tied_params_are_equal", can_be_tied),
        patch.object(modeling_utils, "convert_and_load_state_dict_in_model", convert_checked),
        patch.object(PreTrainedModel, "_move_missing_keys_from_meta_to_device", draw_bounded),
    ):
        yield


@contextlib.contextmanager
def _one_source_of_each_weight(stored: Mapping[str, StoredTensor], place: str) -> Iterator[None]:
    """Raise an error if transformers, in this context, reads two different tensors as one weight.

    For example, transformers reads both "ln_f.weight" and "transformer.ln_f.weight" into the same
    weight, and keeps one of them. They must have equal values.

    Args:
        stored: The tensors of the checkpoint by their names in the files.
        place: Where the checkpoint is, for the message.

    Raises:
        ModelError: Two such tensors differ.
    """
    from transformers.core_model_loading import WeightRenaming

    convert = WeightRenaming.convert

    def convert_checked(renaming: WeightRenaming, *arguments: object, **options: object) -> object:
        """Check that tensors for the same weight are equal, and convert as transformers does."""
        # `layer_targets` has, for each weight of the model, the names in files that become it.
        for stored_names in renaming.layer_targets.values():
            first, *others = sorted(stored_names)
            for other in others:
                if not torch.equal(stored[first][...], stored[other][...]):  # [...] reads them
                    raise ModelError(
                        f"{place}: {first} and {other} are one weight of the model, and differ; "
                        "remove one of them"
                    )
        return convert(renaming, *arguments, **options)

    with patch.object(WeightRenaming, "convert", convert_checked):
        yield


def _warn_of_plain_weights(
    model: PreTrainedModel, stored: Mapping[str, StoredTensor], place: str
) -> None:
    """Warn if a configuration states a quantisation, but all stored weights are plain floats.

    Args:
        model: The model, whose configuration is asked.
        stored: The tensors of the checkpoint by their names.
        place: Where the checkpoint is, for the warning.
    """
    stored_dtypes = {dtype_name(tensor) for tensor in stored.values()}
    quantization = stated_quantization(model.config.to_dict())
    floating_dtypes = set(FLOATING.values())
    if quantization and stored_dtypes <= floating_dtypes:
        log.warning(
            "warning: %s: config.json states that weights are quantised (%s), and all are stored "
            "as %s; remove quantization_config if they are not",
            place,
            quantization,
            listed(sorted(stored_dtypes)),
        )


def _warn_of_two_embeddings(module: PreTrainedModel, called: str) -> None:
    """Warn if a configuration ties the head to the embedding, but their weights differ.

    transformers makes them one tensor, unless the file stores both with different values.

    Args:
        module: The model after its weights were read.
        called: The model's name in the warning.
    """
    if not hasattr(module, "get_output_embeddings"):
        return
    should_be_tied = getattr(config_of_text_model(module), "tie_word_embeddings", False)
    head = module.get_output_embeddings()  # None: the model has no head
    weight = getattr(head, "weight", None)
    if weight is None or not should_be_tied:
        return
    is_tied_in_memory = weight is module.get_input_embeddings().weight
    is_offloaded = weight.is_meta
    if is_tied_in_memory or is_offloaded:
        return
    head_name = "its head"
    for name, parameter in module.named_parameters():
        if parameter is weight:
            head_name = name
            break
    log.warning(
        "warning: %s: config.json says tie_word_embeddings=true, and %s is stored with other "
        "values than the embedding, and runs with these; write false, or leave it out of the file",
        called,
        head_name,
    )


def _placement_options(config: ModelConfig, device: torch.device) -> dict[str, object]:
    """Return the options of `from_pretrained` that quantise weights and place them on devices.

    On the CPU, without quantisation and without a device map, there are no options.

    With a device map, this creates a temporary folder, the option "offload_folder", for weights
    that fit on no device. The caller must remove it when the module is garbage-collected.
    """
    options: dict[str, object] = {}
    if config.quantization:
        from transformers import BitsAndBytesConfig

        in_8bit = config.quantization == "8bit"  # otherwise it is "4bit"
        settings: dict[str, object] = {"load_in_8bit": in_8bit, "load_in_4bit": not in_8bit}
        if not in_8bit:
            settings["bnb_4bit_compute_dtype"] = getattr(torch, config.dtype)
        options["quantization_config"] = BitsAndBytesConfig(**settings)
    if config.device_map is not None:
        on_disk = config.device_map == "disk"
        # "" is the root module, so that all modules are on disk.
        options["device_map"] = {"": "disk"} if on_disk else config.device_map
        options["offload_folder"] = tempfile.mkdtemp(prefix="thinkalike-offload-")
    elif device.type == "cuda":
        # Weights are read shard by shard, and are never whole in the memory of the machine.
        options["device_map"] = {"": device}
    return options


def _moved_to_device(
    module: nn.Module, options: Mapping[str, object], device: torch.device
) -> nn.Module:
    """Move a module to a device, unless it is quantised or offloaded, and return it.

    Dtypes do not change: transformers keeps some weights in float32 on purpose. The folder of
    offloaded weights, if there is one, will be removed when the module is garbage-collected.

    Args:
        module: A model that `from_pretrained` read.
        options: The options with which it was read.
        device: The device of the configuration.
    """
    folder = options.get("offload_folder")
    if isinstance(folder, str):
        weakref.finalize(module, shutil.rmtree, folder, ignore_errors=True)
    if folder or getattr(module, "hf_quantizer", None) is not None:
        return module
    return module.to(device)


def part_with_states(module: PreTrainedModel, config: ModelConfig, family: Family) -> nn.Module:
    """Return the part of a model that computes its states, without the head.

    It is the body. Of an encoder-decoder it is the side that the setting `model.side` names,
    "encoder" or "decoder". The setting may be left out if there is only an encoder, as in
    T5EncoderModel.

    Raises:
        ModelError: The setting names a decoder that does not exist, or is left out where there
            are two sides.
    """
    body = module.base_model
    if not family.is_encoder_decoder:
        return cast(nn.Module, body)
    has_decoder = body.get_decoder() is not body  # a model without one returns itself
    if config.side == "decoder" and not has_decoder:
        raise ModelError(
            f"{config.called} is an encoder without a decoder: remove "
            f"{named_setting('model.side', 'decoder')}"
        )
    if config.side == "encoder" or not has_decoder:
        return cast(nn.Module, module.get_encoder())
    if config.side == "decoder":
        return DecoderSide(module)
    raise ModelError(
        f"{config.called} is an encoder-decoder: choose "
        f"{named_setting('model.side', 'encoder')} or {named_setting('model.side', 'decoder')}"
    )


class DecoderSide(nn.Module):
    """An encoder-decoder whose encoder and decoder read the same text.

    The states are those of the decoder. Its module and its name are part of the identity of a
    model in memory, and so of the keys of results.
    """

    def __init__(self, module: PreTrainedModel):
        super().__init__()
        self.both = module
        self.config = module.config

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding of the whole encoder-decoder."""
        return cast(nn.Module, self.both.get_input_embeddings())

    def forward(self, tokens: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Return the decoder's last states (b, t, d); encoder and decoder both read `tokens`.

        `self.both` is the encoder-decoder; its `base_model` is the model without its head.
        """
        output = self.both.base_model(
            input_ids=tokens,
            attention_mask=attention_mask,
            decoder_input_ids=tokens,
            decoder_attention_mask=attention_mask,
        )
        return cast(Tensor, output[0])
