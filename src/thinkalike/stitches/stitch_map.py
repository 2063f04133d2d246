"""A stitch as a module: one affine map from a site of one model to a site of another."""

from __future__ import annotations

import contextlib
import html
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import hf_hub_download
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thinkalike.arguments import tensor_of
from thinkalike.arguments.tensors import WHOLE
from thinkalike.config.parts import AFTER, MIDDLE
from thinkalike.digests import read_json, regular, tokenizer_fingerprint
from thinkalike.errors import StitchError, ThinkalikeError, one_line, plain
from thinkalike.files import is_folder
from thinkalike.hub import cause_of, reading, resolved
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.models.frozen import FrozenModel

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = {"format": "thinkalike affine stitch", "version": 1}


class StitchMap(nn.Module):
    """The map φ(h) = W h + b from the states of one site, the `source`, to those of another, the `target`.

    The weights are float32 and frozen; `requires_grad_()` trains them further. W is `weight`, of shape (width of the
    target, width of the source), and b is `bias`, of shape (width of the target); others, and entries that are not
    finite, are a StitchError.

    >>> from thinkalike.stitches.stitch_map import Site
    >>> site = Site("mine", "main", 1, "0123456789abcdef", "float32")
    >>> StitchMap(torch.eye(2), torch.ones(2), site, site)(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, weight: Tensor, bias: Tensor, source: Site, target: Site):
        super().__init__()
        for name, tensor in (("weight", weight), ("bias", bias)):
            if isinstance(tensor, Tensor) and tensor.dtype in WHOLE:
                raise StitchError(f"the {name} of a stitch is of whole numbers ({tensor.dtype}), and maps are trained")
        weight, bias = _real(weight, "the weight of a stitch"), _real(bias, "the bias of a stitch")
        for name, site in (("source", source), ("target", target)):
            if not isinstance(site, Site):
                raise StitchError(f"the {name} of a stitch is {site!r}: give a thinkalike.stitches.stitch_map.Site")
        if weight.dim() != 2 or bias.shape != weight.shape[:1] or not weight.numel():
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise StitchError(f"a stitch has a weight (e, d) and a bias (e), not {shapes}")
        for name, tensor in (("weight", weight), ("bias", bias)):
            if not tensor.float().isfinite().all():
                raise StitchError(f"the {name} of a stitch is not of finite numbers ({tensor.dtype})")
        self.weight = nn.Parameter(weight.detach().float().contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().float().contiguous(), requires_grad=False)
        self.source, self.target = source, target
        self.file = ""  # or the folder that it was loaded from, which errors name

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return the states of the target's site, in the dtype of those given; see `AffineMap`."""
        states = _real(states, "states")
        width = self.weight.shape[1]
        if not states.dim() or states.shape[-1] != width:
            raise StitchError(f"states have shape {tuple(states.shape)}, and the stitch maps states of width {width}")
        return self.affine(states)

    @property
    def affine(self) -> AffineMap:
        """The weight and the bias as a plain map, whose products with others are of tensors alone."""
        return AffineMap(self.weight, self.bias)

    def __matmul__(self, first: StitchMap) -> StitchMap:
        """Return the composition: `(a @ b)(states)` is `a(b(states))`.

        Raises:
            StitchError: `first` does not end where this map begins.
        """
        if not isinstance(first, StitchMap):
            return NotImplemented
        begins, ends = self.source, first.target  # of the same weights, whatever the models are called
        if (begins.fingerprint, begins.layer, begins.site) != (ends.fingerprint, ends.layer, ends.site):
            raise StitchError(f"the stitch from {self.source} cannot follow that to {first.target}, another layer")
        one, other = (AffineMap(each.weight.double(), each.bias.double()) for each in (self, first))
        whole = one @ other
        return StitchMap(whole.weight, whole.bias, first.source, self.target)

    def inverse(self) -> StitchMap:
        """Return h ↦ W⁺ (h - b) from the target's site to the source's, with the pseudo-inverse W⁺.

        It maps φ(h) to h, but not the target's own states to the source's: W⁺ multiplies what φ does not explain by up
        to the condition number of W, which a warning gives. The map back by regression is `both_directions(...).psi`,
        or `load_stitch(result).back`.
        """
        condition = f"condition number {self.affine.condition:.3g}"
        warnings.warn(f"the inverse of a stitch with the {condition} multiplies noise by as much", stacklevel=2)
        back = self.affine.inverse()
        return StitchMap(back.weight, back.bias, self.target, self.source)

    def stitched(self, source: FrozenModel, target: FrozenModel, *, check: bool = True) -> StitchedModel:
        """Return the model that runs the source up to its layer, this map, and the target from its layer on.

        Args:
            check: Whether the models must have the weights that the stitch was made with.

        Raises:
            StitchError: They have other weights, or their tokenizers differ, or one lacks the layer of its site.
        """
        if check:
            self.source.check_model(source)
            self.target.check_model(target)
        with in_file(self.file):
            self.source.check_layer(source.name, source.n_layers)
            self.target.check_layer(target.name, target.n_layers)
        source, target = self.source.cut(source), self.target.cut(target)
        return StitchedModel(source, self.source.layer, self, self.target.layer, target)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights, sites and a model card into a folder, which is made if it is not there."""
        folder = Path(folder).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {name: each.detach().cpu().contiguous() for name, each in self.named_parameters()}
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        sites = {"source": asdict(self.source), "target": asdict(self.target)}
        (folder / CONFIG).write_text(json.dumps({**FORMAT, **sites}, indent=1) + "\n")
        (folder / CARD).write_text(self._card())

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> StitchMap:
        """Return the stitch of a folder that `save` wrote.

        Raises:
            StitchError: A file is missing or damaged, or holds something else.
        """
        folder = Path(folder).expanduser()
        with explained(f"{folder} does not hold one stitch as StitchMap.save writes it"):
            config = read_json(folder / CONFIG)
            if (stated := {name: config[name] for name in FORMAT}) != FORMAT:
                raise StitchError(f"{folder / CONFIG} says {stated}, and this reads {FORMAT}")
            parts: dict[str, Any] = load_file(regular(folder / WEIGHTS))
            with in_file(folder / CONFIG):
                source, target = Site(**config["source"]), Site(**config["target"])
            stitch = cls(**parts, source=source, target=target)
            stitch.file = str(folder)
            return stitch

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, revision: str | None = None, **options: Any
    ) -> StitchMap:
        """Return the stitch of a folder, or of a repository of the hub, ORG/NAME.

        Args:
            revision: The branch, tag or commit of a repository.
            options: Of `hf_hub_download`.

        Raises:
            StitchError: The hub has no such stitch or cannot be reached; see `load`.
        """
        place = os.fspath(pretrained_model_name_or_path)
        if is_folder(Path(place).expanduser()):
            return cls.load(place)
        with explained(f"cannot get the stitch {place}", place, revision):
            commit = resolved("model", place, revision).sha  # so that both files are of one commit
            with reading("model", place, commit):
                for name in (CONFIG, WEIGHTS):
                    file = hf_hub_download(place, name, revision=commit, **options)
            return cls.load(Path(file).parent)

    def extra_repr(self) -> str:
        return f"{self.source} ({self.weight.shape[1]}) → {self.target} ({self.weight.shape[0]})"

    def _card(self) -> str:
        sides = ("source", self.source, self.weight.shape[1]), ("target", self.target, self.weight.shape[0])
        lines = []
        for side, at, width in sides:
            cells = map(_in_markdown, (side, at.model, at.revision, at.layer, width, at.dtype))
            fingerprint = re.sub(r"[^\w]", "", at.fingerprint)  # in a code span nothing can be escaped
            lines.append(f"| {' | '.join(cells)} | `{fingerprint}` |")
        rows = "\n".join(lines)
        source, layer = json.dumps(plain(self.source.model)), self.source.layer
        return f"""---
library_name: thinkalike
tags:
- model-stitching
- representation-similarity
---

# A stitch from {_in_markdown(self.source)} to {_in_markdown(self.target)}

An affine map between residual streams at two blocks. It holds no weights of either model, and fits models with these
fingerprints alone. That the stitched model does well does not show that the two models are alike.

| | model | revision | block | width | dtype | fingerprint of the weights |
|---|---|---|---|---|---|---|
{rows}

```python
stitch = thinkalike.StitchMap.from_pretrained("ORG/NAME")  # this repository
states = stitch(stitch.source.cut(thinkalike.load_model({source})).head(tokens, {layer}))
```
"""


def _real(value: Any, name: str) -> Tensor:
    """Return a tensor, or what NumPy makes an array of, as a tensor of real numbers; a StitchError if it is not."""
    try:
        return tensor_of(value, Float, name)
    except ValueError as error:
        raise StitchError(error) from None


def _in_markdown(value: object) -> str:
    """Return a value as text of a model card: the name of a model may come from anywhere, and a page shows the card."""
    text = html.escape(plain(" ".join(str(value).split())), quote=False)
    return re.sub(r"([\\`*\[\]|!~])", r"\\\1", text)


@contextlib.contextmanager
def explained(attempt: str, repository: str = "", revision: str | None = None) -> Iterator[None]:
    """Turn an error of files or of the hub into one line."""
    try:
        yield
    except ThinkalikeError:
        raise
    except Exception as error:  # of the hub's library and of those that it is built on
        known = cause_of(error, repository, revision) if repository else None
        reason = known or f"{type(error).__name__}: {one_line(error)}"
        raise StitchError(f"{attempt}: {reason}") from error


@contextlib.contextmanager
def in_file(file: str | os.PathLike[str]) -> Iterator[None]:
    """Let the error of a stitch begin with the file that it comes from; "": it comes from none."""
    try:
        yield
    except StitchError as error:
        if file:
            raise StitchError(f"{file}: {error}") from error
        raise


@dataclass(frozen=True)
class Site:
    """The residual stream of a model after one of its blocks, or between attention and MLP of one."""

    model: str  # its name
    revision: str  # that was loaded
    layer: int  # the number of the block
    fingerprint: str  # of the weights, see `FrozenModel.fingerprint`; it tells models apart
    dtype: str  # of the weights; the fingerprint depends on it
    settings: str = ""  # a digest of the configuration, see `FrozenModel.settings`; older sites have none
    site: str = AFTER  # or MIDDLE
    layers: int = 0  # how many blocks the model has; 0: the site is older, and does not say it

    def __post_init__(self) -> None:
        texts = (self.model, self.revision, self.fingerprint, self.dtype, self.settings)
        is_place = type(self.layer) is int and self.layer >= 0 and self.site in (AFTER, MIDDLE)
        is_place = is_place and type(self.layers) is int and self.layers >= 0
        if not (is_place and all(isinstance(each, str) for each in texts)):
            raise StitchError(f"{self!r} is no site: its layer must be a number from 0 on, and all else text")
        if self.layers:
            self.check_layer(self.model, self.layers)

    @classmethod
    def of(cls, described: Mapping[str, Any], layer: int) -> Site:
        """Return the site of a model that `FrozenModel.describe` describes, as the provenance of results does."""
        names = {"model": "name", "revision": "revision", "fingerprint": "weights", "dtype": "dtype"}
        facts = {own: str(described[theirs]) for own, theirs in names.items()}
        own = {name: str(described[name]) for name in ("settings", "site") if name in described}
        return cls(layer=layer, layers=int(described.get("layers", 0)), **facts, **own)

    def __str__(self) -> str:
        return f"{self.model}:{self.layer}" + (f".{self.site}" if self.site != AFTER else "")

    def cut(self, model: FrozenModel) -> FrozenModel:
        """Return a model as one whose layers are at this site."""
        if self.site == AFTER:
            return model
        from thinkalike.models.middle import MiddleModel  # which other stitches need not load

        return MiddleModel(model)

    def check_layer(self, name: str, layers: int) -> None:
        """Check that a model of this name, with so many blocks, has the block of this site."""
        if self.layer >= layers:
            raise StitchError(f"the stitch has layer {self.layer} of {name}, which has layers 0 to {layers - 1}")

    def check_model(self, model: FrozenModel) -> None:
        """Check that a model has the weights of this site."""
        found, dtype = model.fingerprint(), str(model.dtype).removeprefix("torch.")
        if found != self.fingerprint:
            raise StitchError(
                f"{model.name} has the weights {found} in {dtype}, but the stitch was made with {self.model} of "
                f"{self.fingerprint} in {self.dtype}: load that model, or give check=False"
            )
        if self.settings not in ("", model.settings()):
            raise StitchError(
                f"{model.name} has the weights of {self.model}, with which the stitch was made, but other settings in "
                "its config.json: load that model, or give check=False"
            )


class StitchedModel:
    """Runs tokens through the source up to a layer, through φ, and through the target from a layer on.

    φ maps the source's states after block `layer` to the target's after block `depth`; both models read rows of at most
    `context` tokens. A StitchError says that they have different tokenizers.
    """

    def __init__(self, source: FrozenModel, layer: int, phi: nn.Module, depth: int, target: FrozenModel):
        self.source, self.layer, self.phi, self.depth, self.target = source, layer, phi, depth, target
        self.context = min(source.context, target.context)
        if tokenizer_fingerprint(source.tokenizer) != tokenizer_fingerprint(target.tokenizer):
            raise StitchError(
                f"{source.name} and {target.name} have different tokenizers: train.py stitches them on text"
            )
        source.check_layers([layer])
        target.check_layers([depth])

    def __call__(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t v"]:
        """Return the target's logits of each next token; they are differentiable with respect to what φ has trainable.

        Raises:
            ModelError: The target predicts no next token.
        """
        states = self.phi(self.source.head(tokens, self.layer))
        return self.target.tail(states.to(self.target.device, self.target.dtype), self.depth)

    @torch.no_grad()
    def generate(self, tokens: Int[Tensor, "b t"], steps: int) -> Int[Tensor, "b more"]:
        """Return the tokens with `steps` more, each the most likely one; every step is a whole pass.

        Raises:
            StitchError: The row would be longer than one of the models can read.
        """
        if tokens.shape[1] + steps > self.context:
            longest = f"{self.context}, the most that both models read"
            raise StitchError(f"{tokens.shape[1]} tokens and steps={steps} more are longer than {longest}")
        for _ in range(steps):
            new = self(tokens)[:, -1].float().cpu().argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, new.to(tokens)], 1)
        return tokens
