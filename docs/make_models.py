"""Which architectures load, and that they are cut right: writes docs/reference/architectures.md.

    python docs/make_models.py              all of them, minutes
    python docs/make_models.py llama t5     only these, to the screen

Each architecture is made tiny and random, saved as transformers saves it, and loaded as any checkpoint is. Then its
residual streams are compared with plain transformers, and every cut with the full pass. Nothing is downloaded.
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
import yaml

from thinkalike.advice import at_command_line
from thinkalike.config import ModelConfig
from thinkalike.errors import ThinkalikeError
from thinkalike.models.families import EMBED, n_blocks_until
from thinkalike.models.frozen import FrozenModel
from thinkalike.models.load import load_model
from thinkalike.models.minis import train_tokenizer
from thinkalike.models.module_facts import first_tensor

HERE = Path(__file__).parent
ROWS, TOKENS, VOCABULARY = 2, 48, 320
CLOSE = 1e-4  # the largest difference, relative to the largest entry
LATE = ("mamba", "mamba2", "falcon_mamba", "rwkv")  # whose reported hidden states begin after the first block


@dataclass(frozen=True)
class Architecture:
    """An architecture, and the sizes of its tiny checkpoint.

    Attributes:
        model_type: as config.json names it.
        kind: the class of transformers that makes it.
        sizes: as its configuration names them.
        side: of an encoder-decoder.
    """

    model_type: str
    kind: str
    sizes: Mapping[str, Any]
    side: str | None = None

    @property
    def name(self) -> str:
        """Return what the table calls it."""
        extra = f" ({self.side})" if self.side else " (classifier)" if "Sequence" in self.kind else ""
        return f"{self.model_type}{extra}"


def architectures() -> dict[str, Architecture]:
    """Return the architectures of docs/architectures.yaml by name; of encoder-decoders each side, and neither."""
    listed = yaml.safe_load((HERE / "architectures.yaml").read_text())
    common, encoders = listed["common"], listed["encoders"]
    found = [Architecture(name, "AutoModelForCausalLM", common | own) for name, own in listed["decoders"].items()]
    found += [Architecture(name, "AutoModelForMaskedLM", common | own) for name, own in encoders.items()]
    labelled = common | {"num_labels": 3}
    found += [
        Architecture(name, "AutoModelForSequenceClassification", labelled | encoders[name])
        for name in listed["classifiers"]
    ]
    for name, own in listed["encoder-decoders"].items():
        found += [
            Architecture(name, "AutoModelForSeq2SeqLM", common | own, side) for side in ("encoder", "decoder", None)
        ]
    return {each.name: each for each in found}


def write(architecture: Architecture, folder: Path, max_shard_size: str = "1GB") -> None:
    """Write a tiny random checkpoint with larger weights than an initialisation has, so that every block matters."""
    import transformers

    default = transformers.AutoConfig.for_model(architecture.model_type)
    sizes = {key: value for key, value in architecture.sizes.items() if value is not None and hasattr(default, key)}
    shape = transformers.AutoConfig.for_model(architecture.model_type, vocab_size=VOCABULARY, **sizes)
    torch.manual_seed(0)
    module = getattr(transformers, architecture.kind).from_config(shape)
    with torch.no_grad():
        for name, weight in module.named_parameters():
            if weight.dim() > 1 and "embed" not in name:
                weight.copy_(torch.randn_like(weight) / weight.shape[-1] ** 0.5)
    module.save_pretrained(folder, max_shard_size=max_shard_size)
    tokenizer().save_pretrained(folder)


def tokenizer() -> Any:
    """Return a small tokenizer; that it fits no model does not matter here."""
    words = [" ".join(f"w{number * factor % 97}" for number in range(200)) for factor in range(1, 20)]
    return train_tokenizer(words, VOCABULARY - 20, cls_sep=True)


@at_command_line()
def row(architecture: Architecture, folder: Path) -> str:
    """Return the row of the table for an architecture: its blocks, or in one line why it is refused.

    Raises:
        AssertionError: it loads, and something is wrong.
    """
    write(architecture, folder)
    try:
        model = load_model(ModelConfig(name="tiny", path=str(folder), side=architecture.side))
    except ThinkalikeError as error:
        return f"| {architecture.name} | | | refused: {str(error).replace(str(folder), 'FOLDER')} |"
    tokens = torch.randint(5, VOCABULARY - 20, (ROWS, min(TOKENS, model.context)))
    _check_states(model, architecture, folder, tokens)
    if model.predicts != "states":
        _check_cuts(model, tokens)
    return f"| {architecture.name} | {model.predicts} | `{model.family.blocks}` | right |"


def _check_states(model: FrozenModel, architecture: Architecture, folder: Path, tokens: torch.Tensor) -> None:
    """Compare every residual stream with what transformers says by itself, and the last one with a hook."""
    import transformers

    plain = getattr(transformers, architecture.kind).from_pretrained(folder).eval()
    ours = model.residuals(tokens, [EMBED, *range(model.n_layers)])
    seen: dict[int, torch.Tensor] = {}
    root = plain.get_encoder() if architecture.side == "encoder" else plain
    blocks = list(root.get_submodule(model.family.blocks.removeprefix("both.")).children())
    more = {"decoder_input_ids": tokens} if architecture.side else {}
    with contextlib.ExitStack() as hooks, torch.no_grad():
        for layer, block in enumerate(blocks):
            keep = partial(lambda n, _, args, output: seen.update({n: first_tensor(output)}), layer)
            hooks.enter_context(block.register_forward_hook(keep))
        output = plain(tokens, output_hidden_states=True, use_cache=False, **more)
    for layer, state in enumerate(ours[1:]):
        _close(state, seen[layer], f"layer {layer}")
    reported = output.get(f"{architecture.side}_hidden_states" if architecture.side else "hidden_states")
    assert len(reported) == len(ours), f"transformers reports {len(reported)} hidden states"
    first = int(architecture.model_type in LATE)
    if architecture.model_type == "rwkv":
        return  # it halves the stream every few blocks, and reports what comes after
    for number, (state, expected) in enumerate(zip(ours[first:-1], reported[: -1 - first], strict=True)):
        _close(state, expected, f"hidden state {number}")


def _check_cuts(model: FrozenModel, tokens: torch.Tensor) -> None:
    """Compare the tail after every head with the full pass, and see that gradients come through."""
    full = model.full(tokens)
    for layer in (EMBED, *range(model.n_layers)):
        state = model.head(tokens, layer).detach().requires_grad_()
        last = model.advance(state, n_blocks_until(layer), model.n_layers)
        joined = model.finish(last) if model.predicts == "next" else model.output(last)
        _close(joined, full, f"the tail after {layer}")
        joined.square().sum().backward()
        gradient = 0.0 if state.grad is None else float(state.grad.abs().sum())
        assert 0 < gradient < float("inf"), f"the gradient at {layer} is {gradient}"


def _close(ours: torch.Tensor, expected: torch.Tensor, what: str) -> None:
    error = float((ours - expected).abs().max() / expected.abs().max())
    assert error <= CLOSE, f"{what} differs by {error:.1e}"


PAGE = """# Architectures

Does thinkalike load my architecture, and is it cut correctly? `python docs/make_models.py` makes this page. It
builds a tiny random model of each architecture, saves it with transformers {version}, and loads it like any
checkpoint (`model=local`, `model=hub`, or a named model); thinkalike finds the blocks in the module itself.
Every residual stream is compared with a plain transformers model, by hooks and by `output_hidden_states`
([Layer numbering](../concepts/layer-numbering.md)). At every cut, the tail of the head is compared with the
full forward pass, on rows longer than any sliding window, and gradients pass through every tail. All
differences are below {close} of the largest entry, or the line says what is refused.

{loaded} load, {refused} are refused.

| architecture | predicts | blocks | found |
|---|---|---|---|
{rows}
"""


def main() -> None:
    """Check all architectures and write the page, or print what is found of some."""
    known, names = architectures(), sys.argv[1:]
    rows = []
    for name in names or known:
        with tempfile.TemporaryDirectory() as folder:
            rows.append(row(known[name], Path(folder)))
        print(rows[-1], flush=True)
    if not names:
        refused = sum("refused" in line for line in rows)
        counts = {"loaded": len(rows) - refused, "refused": refused, "close": CLOSE}
        versions = {"version": version("transformers")}
        (HERE / "reference" / "architectures.md").write_text(PAGE.format(rows="\n".join(rows), **counts, **versions))


if __name__ == "__main__":
    main()
