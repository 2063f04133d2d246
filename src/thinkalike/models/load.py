"""Loading: from a configuration to a FrozenModel, whether it is on the hub, in a local folder, or an embedded mini."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from copy import copy, deepcopy
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar, cast, runtime_checkable

import torch

from thinkalike.config import ModelConfig, model_named, options
from thinkalike.config.in_memory import LoadedModelConfig
from thinkalike.config.parts import AFTER, model_settings
from thinkalike.config.schema import declared_of
from thinkalike.errors import ConfigError, ModelError, checked_path, one_of
from thinkalike.files import is_there
from thinkalike.global_state import isolated
from thinkalike.measures.seeds import seeded
from thinkalike.memory import page_out
from thinkalike.models.behaviour import copied
from thinkalike.models.families import FAMILIES, LONGEST, Family, family_in, is_known, pick_device, stated_quantization
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.labels import label, told_apart
from thinkalike.models.module_facts import (
    TOLERANCE,
    Checkpoint,
    embedding_of,
    first_tensor,
    longest_row,
    puts_bos,
    relative_error,
    sample_tokens,
)
from thinkalike.models.places import base_of, explained, named_folder, reached, read_shape
from thinkalike.models.plausible import check_plausible, check_rope
from thinkalike.models.precision import cast_weights
from thinkalike.models.survey import passing, without_hooks
from thinkalike.processes import doing
from thinkalike.shards.index import holds_states

log = logging.getLogger(__name__)

PADDING, PADDED = 0.1, 256  # share and number of the rows of an embedding that no token may have
SAME = 0.9  # of the ids of two tokenizers of one vocabulary stand for the same token
END = "<|endoftext|>"  # the only special token of a mini


@runtime_checkable
class Named(Protocol):
    """Something that is loaded under a name."""

    @property
    def name(self) -> str: ...


Source = TypeVar("Source", bound=Named)


def load_models(*configs: ModelConfig) -> list[FrozenModel]:
    """Load several models, each different one once, under labels that tell them apart; see `load_model`."""
    return load_groups([configs], load_model)[0]


def load_groups(
    groups: Sequence[Sequence[ModelConfig]], load: Callable[[ModelConfig, str], Source]
) -> list[list[Source]]:
    """Load the models of several groups, each different one once, under labels that tell those of a group apart.

    Args:
        load: Loads one of them under a name, as `load_model` does.
    """
    loaded: list[tuple[ModelConfig, Source]] = []

    def called(config: ModelConfig, name: str) -> Source:
        for known, model in loaded:
            if known == config and model.name == name:
                return model
        model = load_again(config, name) or load(config, name)
        loaded.append((config, model))
        return model

    def load_again(config: ModelConfig, name: str) -> Source | None:
        """Return a model whose weights are in memory already, at other sites."""
        for known, model in loaded:
            if isinstance(model, FrozenModel) and replace(known, site=config.site, head=config.head) == config:
                return cast(Source, at_sites(model, config, name))
        return None

    return [[called(*each) for each in zip(group, told_apart(group), strict=True)] for group in groups]


@isolated()
def load_model(
    model: ModelConfig | str | os.PathLike[str] | torch.nn.Module, tokenizer: Any = None, name: str | None = None,
    **settings: Any,
) -> FrozenModel:  # fmt: skip
    """Load a model onto its device and in its dtype, and prove that it can be cut at its blocks.

        load_model("gpt2", dtype="bfloat16", device="cuda")
        load_model(module, tokenizer, name="after step 1000")

    Args:
        model: Its everyday name, such as "gelu-3l-mini"; the name of its repository on the hub, ORG/NAME; a folder with
            a checkpoint; a GGUF file; a configuration; or a model in memory, which is copied: of transformers, or a
            `TransformerBridge` of TransformerLens.
        tokenizer: The tokenizer of a model in memory, see `check_tokenizer`. That of a bridge is read anew, as its
            checkpoint has it, where none is given: a bridge's own puts BOS before texts. Of any other model this place
            is that of the name.
        name: The name of the loaded model, by default its label.
        settings: Settings of `model=` by their names, such as dtype, device, revision and context. A model in memory
            keeps its own dtype and device by default, and takes no setting that says where weights are.

    Raises:
        ConfigError: the model, its family or a setting is not known.
        TypeError: the model is given as something else.
        ModelError: weights cannot be read, are of another architecture, or fail the proof.

    >>> load_model("gelu-3l-mini", context=64)
    FrozenModel(gelu-3l-mini: 3 layers of width 128, vocabulary 1024, context 64; native, float32 on cpu)
    """
    if isinstance(model, torch.nn.Module):
        return _in_memory(model, tokenizer, name, settings)
    if not isinstance(tokenizer, str | None):
        raise TypeError(f"load_model takes a tokenizer with a model in memory alone, and not with {model}")
    config = configured(model, settings)
    name = name or tokenizer or label(config)
    if isinstance(config, LoadedModelConfig):
        return at_sites(cast(FrozenModel, config.loaded), config, name)
    one_of("model.family", config.family, ("auto", *FAMILIES))
    if holds_states(config.path):
        raise ModelError(
            f"model={config.path} is a folder of states, which has no weights to run: measure=cka and its kin, r2, "
            "ruler, mlem and rsa compare it"
        )
    with explained(config), doing(f"model {name}"):
        device, dtype = torch.device(pick_device(config.device)), getattr(torch, config.dtype)
        base = base_of(config)
        source = base or config  # whose weights are read
        with reached(source) as (place, revision):
            if named_folder(source) is None:
                source = replace(source, revision=revision)  # all files are of one commit
            shape = read_shape(source, place)
            family = FAMILIES.get(source.family) or family_in(shape, f"{place}/config.json")
            _check_settings(config, family)
            if not config.implausible:
                check_rope(shape, config.called)
            stated = stated_quantization(shape)
            if stated and config.quantization:
                remedy = f"remove model.quantization={config.quantization}"
                raise ModelError(f"{config.called} is quantised already ({stated}); {remedy}")
            adapter = named_folder(config) if base else None
            read = _read(source, family, place, device, dtype, adapter)
            read = read._replace(quantization=read.quantization or stated)
        found = _frozen(config, family, read, name=name, device=_device_of(read.module, device), revision=revision)
        return at_sites(found, config, name)


def at_sites(model: FrozenModel, config: ModelConfig, name: str) -> FrozenModel:
    """Return the same model under a name, with its states at the sites of a configuration."""
    found = copy(model)
    found.name, found.sites = name, None
    if config.site != AFTER:
        from thinkalike.models.sites import Sites

        found.sites = Sites(model, [config.site] if isinstance(config.site, str) else config.site, config.head)
    return found


def _in_memory(module: Any, tokenizer: Any, name: str | None, settings: Mapping[str, Any]) -> FrozenModel:
    """Return a copy of a model of transformers, of PEFT or of a bridge as a FrozenModel; see `load_model`."""
    from transformers import PreTrainedModel

    from thinkalike.models.adapters import live_adapter
    from thinkalike.models.readers import part_with_states
    from thinkalike.models.tokenizer_reading import dropout_of

    is_bridge = type(module).__name__ == "TransformerBridge"  # its module is of transformers, or TransformerLens's own
    is_adapted = hasattr(module, "peft_config") and hasattr(module, "get_base_model")  # a PeftModel
    unwrapped = None
    if is_bridge:
        from thinkalike.models.bridges import tokenizer_of, unbridged

        tokenizer = tokenizer_of(module.tokenizer) if tokenizer is None else tokenizer
        unwrapped, name = unbridged(module), name or Path(module.cfg.model_name).name
        module = unwrapped
    is_tokenizer = callable(tokenizer) and hasattr(tokenizer, "get_vocab")
    if not (is_bridge or is_adapted or isinstance(module, PreTrainedModel)) or not is_tokenizer:
        raise TypeError("load_model takes a PreTrainedModel of transformers or a TransformerBridge and its tokenizer, "
                        f"not {type(module).__name__} and {type(tokenizer).__name__}")  # fmt: skip
    if dropout := dropout_of(tokenizer):
        raise ModelError(
            f"the tokenizer has dropout={dropout:g}, with which a text has other ids at every call: set "
            "tokenizer.backend_tokenizer.model.dropout = None"
        )
    applicable = {item.name for item in fields(model_settings()) if declared_of(item).in_memory}
    for key in settings.keys() - applicable:
        raise ConfigError(f"model.{key} does not apply to a model passed in memory; leave it out")
    first, kind = embedding_of(module), type(module).__name__
    own = {"dtype": first.dtype, "device": first.device, "bos": None, "corpus": None, **settings}
    config = configured(model_settings(name=name or Path(module.name_or_path or kind).name), own)
    with explained(config), doing(f"model {config.name}"):
        family = _family_of(module.get_base_model() if is_adapted else module)
        _check_settings(config, family)
        # States are of a part of the model, classifiers may need padding first, and another dtype rounds otherwise.
        is_compared = not is_bridge and family.predicts in ("next", "hidden") and "dtype" not in settings
        expected = _outputs_as_given(module, config.name) if is_compared else None
        if is_adapted:
            unwrapped = live_adapter(module, config.name)
        device = torch.device(pick_device(config.device))
        whole = unwrapped if unwrapped is not None else copied(module)
        # Without a dtype that is asked for, each weight keeps its own: some may be in float32 on purpose.
        whole = cast_weights(whole, device, getattr(torch, config.dtype)) if "dtype" in settings else whole.to(device)
        part = part_with_states(whole, config, family) if family.predicts == "states" else whole
        shape = whole.config.to_dict() if hasattr(whole, "config") else {}
        quantization = stated_quantization(shape)
        read = Checkpoint(part, tokenizer, longest_row(whole), quantization)
        if not config.implausible:
            check_tokenizer(whole, tokenizer, config.name)
        found = _frozen(config, family, read, name=config.name, device=device, revision="in memory")
        if expected is not None:
            _check_copy(found, expected)
        return at_sites(found, config, config.name)


@isolated()
def load_tokenizer(name: str, beside: Path) -> Any:
    """Load the tokenizer in a folder, by its path from the folder `beside`, or that of a model, without its weights."""
    folder = beside / name
    is_model = (folder / "config.json").is_file()
    if not is_model and any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json")):
        from thinkalike.models.tokenizer_reading import read_tokenizer

        config = ModelConfig(name="local", path=str(folder))
        with explained(config):
            return read_tokenizer(config, str(folder))
    config = configured(name, {})
    with explained(config), reached(config) as (place, revision):
        source = replace(config, revision=revision) if named_folder(config) is None else config
        reader = family_in(read_shape(source, place), f"{place}/config.json").reader
        if reader == "native":
            return mini_tokenizer(place)
        if reader == "transformers":
            from thinkalike.models.tokenizer_reading import read_tokenizer

            return read_tokenizer(source, place)
    return load_model(config).tokenizer


def check_tokenizer(module: Any, tokenizer: Any, name: str) -> None:
    """Check, as far as can be known, that a tokenizer is that of a model in memory.

    - Its ids leave no more than a tenth of the embedding's rows unused, and 256: models pad theirs, by 3 % at most.
    - Where `name_or_path` of the model is a folder, or a repository that was downloaded, the tokenizer there gives nine
      tenths of their common ids to the same tokens. Added tokens are no difference.

    Raises:
        ModelError: it is of another vocabulary, for which the embedding would give the states of other words.
    """
    vocabulary: Mapping[str, int] = tokenizer.get_vocab() if hasattr(tokenizer, "get_vocab") else {}
    if not vocabulary:
        return
    rows, used = len(embedding_of(module)), max(vocabulary.values()) + 1
    remedy = "give the tokenizer that the model was trained with, or load_model(..., implausible=True)"
    if rows - used > max(PADDING * rows, PADDED):
        raise ModelError(f"{name}: its embedding has {rows} rows, and the tokenizer uses {used} of them: {remedy}")
    place = str(getattr(module, "name_or_path", "") or "")
    if place in ("", str(getattr(tokenizer, "name_or_path", ""))) or (usual := _tokenizer_at(place)) is None:
        return
    known = {number: token for token, number in usual.get_vocab().items()}
    common = [(token, known[number]) for token, number in vocabulary.items() if number in known]
    same = sum(token == usual_token for token, usual_token in common)
    if same < SAME * len(common):
        shares = f"{same} of {len(common)} ids stand for the same tokens as in that of {place}"
        raise ModelError(f"{name}: the tokenizer is of another vocabulary, {shares}: {remedy}")


def _tokenizer_at(place: str) -> Any:
    """Return the tokenizer of a folder, or of a repository that was downloaded; None: it cannot be known."""
    from transformers import AutoTokenizer

    from thinkalike.models.bounds import check_growth

    file = Path(place, "tokenizer.json")
    try:
        if file.is_file():
            check_growth(file)
        return AutoTokenizer.from_pretrained(place, local_files_only=True)
    except Exception:  # of a library that reads whatever is there
        return None


def _outputs_as_given(module: Any, name: str) -> torch.Tensor:
    """Return what a model in memory gives for sample tokens in evaluation; the model stays as it is."""
    embedding = embedding_of(module)
    tokens = sample_tokens(len(embedding), longest_row(module) or LONGEST)
    training = {part: part.training for part in module.modules()}
    try:
        with torch.no_grad(), passing(name):
            return first_tensor(module.eval()(tokens.to(embedding.device))).clone()
    finally:
        for part, was_training in training.items():
            part.training = was_training


def _check_copy(model: FrozenModel, expected: torch.Tensor) -> None:
    """Raise a ModelError unless the copy of a model in memory gives what the model itself does."""
    tokens = sample_tokens(len(embedding_of(model.module)), longest_row(model.module) or LONGEST)
    error = relative_error(model.full(tokens).to(expected), expected)
    if not error <= TOLERANCE[model.dtype]:  # NaN fails as well
        found = f"a copy of it gives other logits (by {error:.1e} of the largest)"
        raise ModelError(f"{model.name}: {found}, so that it cannot be frozen; save it, and give its folder")


def _family_of(module: Any) -> Family:
    """Return the family of a model in memory by what its class predicts; if unknown, of its body."""
    if not hasattr(module, "config"):
        return FAMILIES["native"]
    names = [base.__name__ for base in type(module).__mro__]  # a subclass predicts what its class does
    if not is_known(str(module.config.model_type), names):
        names = [type(module.base_model).__name__]
    return family_in({**module.config.to_dict(), "architectures": names}, names[0])


def configured(model: ModelConfig | str | os.PathLike[str], settings: Mapping[str, Any]) -> ModelConfig:
    """Return the configuration that a name, a folder or a configuration stands for, with these settings."""
    plain = {key: str(value).removeprefix("torch.") if key in ("dtype", "device") else value
             for key, value in settings.items()}  # fmt: skip
    if isinstance(model, ModelConfig):
        return model_named(model, plain)
    called = checked_path("model", model)
    is_place = isinstance(model, os.PathLike) or (called not in options("model") and is_there(called))
    return model_named(str(Path(called).absolute()) if is_place else called, plain)


def _check_settings(config: ModelConfig, family: Family) -> None:
    """Refuse settings that a family does not read, which would change the key of a result and none of its numbers."""
    read = ["device_map", "quantization"] if family.reader == "transformers" else []
    read += ["side"] if family.has_sides else []
    for key in ("device_map", "quantization", "side"):
        if (value := getattr(config, key)) is not None and key not in read:
            raise ConfigError(f"model.{key}={value} has no effect for {config.called}, a {family.name}; leave it out")
    config.check_family(family.name, family.predicts)


def _read(
    config: ModelConfig, family: Family, place: str, device: torch.device, dtype: torch.dtype, adapter: Path | None
) -> Checkpoint:
    if adapter and family.reader != "transformers":
        raise ModelError(f"{adapter} is an adapter, whose base is a model of transformers; {config.called} is none")
    if family.reader == "native":
        return read_mini(place, device, dtype)
    from thinkalike.models.readers import read_legacy, read_transformers

    if family.reader == "legacy":
        return read_legacy(config, place, device, dtype)
    return read_transformers(config, family, place, device, dtype, adapter)


def _frozen(config: ModelConfig, family: Family, read: Checkpoint, **facts: Any) -> FrozenModel:
    """Return what was read as a FrozenModel with these further `facts`, after all checks."""
    module, tokenizer, longest, quantization, has_head = read
    if config.context and longest and config.context > longest:
        log.warning("%s accepts at most %d tokens, so rows are cut to that length", facts["name"], longest)
    if not has_head:
        family = replace(family, predicts="states", blocks="")
    if not family.blocks:
        from thinkalike.models.blocks import blocks_of

        family = replace(family, blocks=blocks_of(module, config.called))
    frozen = FrozenModel(
        module,
        family,
        tokenizer,
        context=min(longest or LONGEST, config.context or LONGEST),
        bos_each_row=puts_bos(tokenizer) if config.bos is None else config.bos,
        classes=_classes(config, module) if family.predicts == "class" else (),
        quantization=quantization,
        **facts,
    )
    frozen.corpus = config.corpus
    # An added token occurs only in a text that spells it, and may have no row: each pass checks its ids.
    vocabulary = tokenizer.get_vocab()  # makes a dictionary of all pieces each time
    pieces = vocabulary.keys() - tokenizer.get_added_vocab().keys()
    largest = max((vocabulary[piece] for piece in pieces), default=0)
    if largest >= frozen.vocabulary:
        rows = f"its embedding only {frozen.vocabulary} rows"
        raise ModelError(f"{frozen.name}: its tokenizer has ids up to {largest}, but {rows}")
    if not config.implausible:
        check_plausible(frozen)
    return frozen


def build_mini(architecture: dict[str, Any], vocabulary: int, seed: int, family: str = "native") -> torch.nn.Module:
    """Build a randomly initialised model of these sizes, in the names of the family's own configuration class.

    The same seed gives the same weights whatever the activation.
    """
    known = FAMILIES[family]
    if known.reader == "transformers":
        from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForMaskedLM

        torch.manual_seed(seed)
        kind = AutoModelForMaskedLM if known.predicts == "hidden" else AutoModelForCausalLM
        return kind.from_config(AutoConfig.for_model(known.in_config_json, vocab_size=vocabulary, **architecture))
    from transformer_lens.model_bridge import TransformerBridge

    config = {**architecture, "d_vocab": vocabulary, "seed": seed}
    bridge = TransformerBridge.boot_native(config, device="cpu", dtype=torch.float32)
    return without_hooks(bridge.original_model).train().requires_grad_(True)


def mini_tokenizer(place: str) -> Any:
    """Read the tokenizer of a folder that `save_mini` wrote."""
    from transformers import PreTrainedTokenizerFast

    marks = dict.fromkeys(("bos_token", "eos_token", "pad_token"), END)
    return PreTrainedTokenizerFast(tokenizer_file=f"{place}/tokenizer.json", **marks)


def read_mini(place: str, device: torch.device, dtype: torch.dtype) -> Checkpoint:
    """Read a folder that `save_mini` wrote for the family `native`."""
    from safetensors.torch import load_file

    from thinkalike.models.stored_weights import check_dtypes

    config = json.loads(Path(place, "config.json").read_text())
    tokenizer = mini_tokenizer(place)
    module: Any = build_mini(config["architecture"], len(tokenizer), config["seed"])
    weights = load_file(f"{place}/model.safetensors")
    check_dtypes(weights, place, {name.rpartition(".")[2] for name, _ in module.named_parameters()})
    module.load_state_dict({name: weight.float() for name, weight in weights.items()})
    return Checkpoint(module.to(device=device, dtype=dtype), tokenizer, module.cfg.n_ctx)


def _classes(config: ModelConfig, module: Any) -> list[str]:
    """Return the classes of a classifier in the order of its logits."""
    stated = [module.config.id2label[number] for number in range(module.config.num_labels)]
    names = [name.lower().replace("_", "-").replace("not-entailment", "non-entailment") for name in stated]
    return config.classes_of(names)


def _device_of(module: Any, device: torch.device) -> torch.device:
    """Return where the states and logits of a module are: where its first weights run, or the CPU."""
    mapped = getattr(module, "hf_device_map", None)
    if mapped is None:
        return device
    return torch.device(next((place for place in mapped.values() if place not in ("cpu", "disk")), "cpu"))


def variant(model: FrozenModel, module: torch.nn.Module, name: str, is_proved: bool = False) -> FrozenModel:
    """Return a module of a model's architecture as a FrozenModel with the same tokenizer, context and sites."""
    facts = {key: getattr(model, key) for key in ("context", "bos_each_row", "device", "classes")}
    found = FrozenModel(module, model.family, model.tokenizer, name=name, is_proved=is_proved, **facts)
    if type(model) is not FrozenModel:  # but one that is cut elsewhere
        return type(model)(found, is_proved=is_proved)  # type: ignore[call-arg, arg-type]
    found.sites = model.sites and type(model.sites)(found, model.sites.chosen, model.sites.head)
    return found


def randomised(model: FrozenModel, seed: int) -> FrozenModel:
    """Return a copy in which every matrix is drawn anew from a normal distribution of its own spread."""
    module, generator = deepcopy(model.module), seeded(seed)
    with torch.no_grad():
        for weight in module.parameters():
            if weight.dim() > 1:
                noise = torch.randn(weight.shape, generator=generator)
                weight.copy_(noise * weight.float().std().cpu())
    return variant(model, module, f"{model.name} (random)", is_proved=True)


def fresh(model: FrozenModel, seed: int) -> FrozenModel:
    """Return the architecture with new initial weights, as its own library draws them."""
    from transformer_lens.model_bridge.sources.native.init import initialize_native_model
    from transformer_lens.model_bridge.sources.native.model import NativeModel

    if isinstance(model.module, NativeModel):
        module: torch.nn.Module = deepcopy(model.module)
        initialize_native_model(module, model.module.cfg, seed)  # type: ignore[arg-type]
    else:
        page_out()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            module = type(model.module)(deepcopy(model.module.config))
    return variant(model, cast_weights(module, model.device, model.dtype), f"{model.name} (fresh)", is_proved=True)


@torch.no_grad()
def twin(model: FrozenModel, seed: int) -> FrozenModel:
    """Return the architecture with new initial weights and the model's own embedding of tokens, in the same memory."""
    found = fresh(model, seed)
    embedding_of(found.module).data = embedding_of(model.module).data
    return found
