"""A stitch as a module: one affine map from a site of one model to a site of another."""

from __future__ import annotations

import html
import json
import os
import re
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

from huggingface_hub import hf_hub_download
from jaxtyping import Float
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thinkalike.arguments import tensor_of
from thinkalike.arguments.tensors import WHOLE
from thinkalike.digests import read_json, regular
from thinkalike.errors import StitchError, in_home, plain
from thinkalike.files import is_folder
from thinkalike.hub import reading, resolved
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.models.frozen import FrozenModel
from thinkalike.stitches.errors import explaining_file_errors as explaining_file_errors
from thinkalike.stitches.errors import in_file as in_file
from thinkalike.stitches.site import Site as Site
from thinkalike.stitches.stitched_model import StitchedModel as StitchedModel

# The files of the folder of a stitch.
WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"

# What config.json says of its own format.
FORMAT = {"format": "thinkalike affine stitch", "version": 1}


class StitchMap(nn.Module):
    """The map φ(h) = W h + b from the states of one site, the `source`, to another, the `target`.

    The weights are float32 and frozen; `requires_grad_()` trains them further.

    Args:
        weight: W, (width of the target, width of the source).
        bias: b, (width of the target).
        source: Where the states come from.
        target: Where they go.

    Raises:
        StitchError: The weight or the bias has another shape, or an entry that is not finite.

    >>> from thinkalike.stitches.stitch_map import Site
    >>> site = Site("mine", "main", 1, "0123456789abcdef", "float32")
    >>> StitchMap(torch.eye(2), torch.ones(2), site, site)(torch.ones(2))
    tensor([2., 2.])
    """

    def __init__(self, weight: Tensor, bias: Tensor, source: Site, target: Site):
        """Check the arguments, and store weight and bias in float32 without gradients."""
        super().__init__()
        weight = _checked_numbers(weight, "weight")
        bias = _checked_numbers(bias, "bias")
        _check_site(source, "source")
        _check_site(target, "target")
        if weight.dim() != 2 or bias.shape != weight.shape[:1] or not weight.numel():
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise StitchError(f"a stitch has a weight (e, d) and a bias (e), not {shapes}")
        _check_finite(weight, "weight")
        _check_finite(bias, "bias")

        self.weight = nn.Parameter(weight.detach().float().contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().float().contiguous(), requires_grad=False)
        self.source = source
        self.target = target
        # The folder that it was loaded from, which errors name; "": it was not loaded.
        self.file = ""

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return W h + b for each state h, in the dtype of `states`.

        Raises:
            StitchError: States have another width than the source's, or are no real numbers.
        """
        states = _real_tensor(states, "states")
        width = self.weight.shape[1]
        if not states.dim() or states.shape[-1] != width:
            raise StitchError(
                f"states have shape {tuple(states.shape)}, "
                f"and the stitch maps states of width {width}"
            )
        return self.affine(states)

    @property
    def affine(self) -> AffineMap:
        """The weight and the bias as an `AffineMap`, without sites."""
        return AffineMap(self.weight, self.bias)

    @property
    def _double(self) -> AffineMap:
        """The map in float64, in which compositions are computed."""
        return AffineMap(self.weight.double(), self.bias.double())

    def __matmul__(self, first: StitchMap) -> StitchMap:
        """Return the composition, computed in float64: `(a @ b)(states)` is `a(b(states))`.

        Raises:
            StitchError: The target site of `first` is not the source site of this map.
        """
        if not isinstance(first, StitchMap):
            return NotImplemented
        if not self.source.is_same_as(first.target):
            raise StitchError(
                f"the stitch from {self.source} cannot follow that to {first.target}, "
                "another layer"
            )
        composition = self._double @ first._double
        return StitchMap(composition.weight, composition.bias, first.source, self.target)

    def inverse(self) -> StitchMap:
        """Return h ↦ W⁺ (h - b), from the target's site to the source's; W⁺ is the pseudo-inverse.

        It maps φ(h) back to h, but it is no good map of the target's own states to the source's:
        W⁺ amplifies what φ does not explain, relative to φ(h), by up to the condition number of W,
        which a warning gives. The map back by regression is `both_directions(...).psi`, or
        `load_stitch(result).back`.
        """
        condition = f"condition number {self.affine.condition:.3g}"
        warnings.warn(
            f"the inverse of a stitch with the {condition} multiplies noise by as much",
            stacklevel=2,
        )
        back = self.affine.inverse()
        return StitchMap(back.weight, back.bias, self.target, self.source)

    def stitched(
        self, source: FrozenModel, target: FrozenModel, *, check: bool = True
    ) -> StitchedModel:
        """Return the stitched model: the source up to its site, this map, and the target after it.

        Args:
            source: The model whose states are mapped.
            target: The model that continues from the mapped states.
            check: Whether the models must have the weights and settings with which the stitch was
                made.

        Raises:
            StitchError: The models have other weights, their tokenizers differ, or one lacks the
                layer of its site.
        """
        if check:
            self.source.check_model(source)
            self.target.check_model(target)
        with in_file(self.file):
            self.source.check_layer(source.name, source.n_layers)
            self.target.check_layer(target.name, target.n_layers)
        # A site can be in the middle of a block; views have their layers at such places.
        source_at_site = self.source.cut(source)
        target_at_site = self.target.cut(target)
        return StitchedModel(
            source_at_site, self.source.layer, self, self.target.layer, target_at_site
        )

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write the weights, the sites and a model card into a folder, and make it if necessary.

        Files of the same names are replaced.
        """
        folder = in_home(folder)
        folder.mkdir(parents=True, exist_ok=True)
        tensors = {}
        for name, tensor in self.named_parameters():
            tensors[name] = tensor.detach().cpu().contiguous()
        save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
        config = {**FORMAT, "source": asdict(self.source), "target": asdict(self.target)}
        (folder / CONFIG).write_text(json.dumps(config, indent=1) + "\n")
        (folder / CARD).write_text(_card(self))

    @classmethod
    def load(cls, folder: str | os.PathLike[str]) -> StitchMap:
        """Return the stitch that `save` wrote into a folder.

        Raises:
            StitchError: A file is missing or damaged, has another format, or holds no stitch.
        """
        folder = in_home(folder)
        with explaining_file_errors(
            f"{folder} does not hold one stitch as StitchMap.save writes it"
        ):
            config = read_json(folder / CONFIG)
            stated_format = {name: config[name] for name in FORMAT}
            if stated_format != FORMAT:
                raise StitchError(
                    f"{folder / CONFIG} says {stated_format}, and this reads {FORMAT}"
                )
            tensors = load_file(regular(folder / WEIGHTS))
            with in_file(folder / CONFIG):
                source = Site(**config["source"])
                target = Site(**config["target"])
            stitch = cls(**tensors, source=source, target=target)  # type: ignore[arg-type]
            stitch.file = str(folder)
            return stitch

    @classmethod
    def from_pretrained(
        cls,
        pretrained_model_name_or_path: str | os.PathLike[str],
        *,
        revision: str | None = None,
        **options: Any,
    ) -> StitchMap:
        """Return the stitch in a local folder or, if there is none, in a repository of the hub.

        Args:
            pretrained_model_name_or_path: The folder, or the repository as ORG/NAME.
            revision: The branch, tag or commit of a repository; None: the default branch.
            options: Further arguments of `hf_hub_download`.

        Raises:
            StitchError: The hub has no such stitch or cannot be reached, or a file is missing or
                damaged.
        """
        name = os.fspath(pretrained_model_name_or_path)
        if is_folder(in_home(name)):
            return cls.load(name)
        with explaining_file_errors(f"cannot get the stitch {name}", name, revision):
            commit = resolved("model", name, revision).sha  # both files must be of one commit
            with reading("model", name, commit):
                hf_hub_download(name, CONFIG, revision=commit, **options)
                weights = hf_hub_download(name, WEIGHTS, revision=commit, **options)
            return cls.load(Path(weights).parent)

    def extra_repr(self) -> str:
        """Return the sites and their widths, to be shown in the `repr` of the module."""
        width_out, width_in = self.weight.shape
        return f"{self.source} ({width_in}) → {self.target} ({width_out})"


def _checked_numbers(tensor: object, name: str) -> Tensor:
    """Return the weight or the bias of a stitch as a tensor of real numbers.

    Args:
        tensor: A tensor, or anything that NumPy can make an array of.
        name: "weight" or "bias", for errors.

    Raises:
        StitchError: Its entries are integers or anything but real numbers.
    """
    if isinstance(tensor, Tensor) and tensor.dtype in WHOLE:
        raise StitchError(
            f"the {name} of a stitch is of whole numbers ({tensor.dtype}), and maps are trained"
        )
    return _real_tensor(tensor, f"the {name} of a stitch")


def _check_site(site: object, name: str) -> None:
    """Raise a StitchError unless a value is a `Site`; `name` is "source" or "target"."""
    if not isinstance(site, Site):
        raise StitchError(
            f"the {name} of a stitch is {site!r}: give a thinkalike.stitches.stitch_map.Site"
        )


def _check_finite(tensor: Tensor, name: str) -> None:
    """Raise a StitchError if a number of the weight or bias is NaN or infinite in float32."""
    if not tensor.float().isfinite().all():
        raise StitchError(f"the {name} of a stitch is not of finite numbers ({tensor.dtype})")


def _real_tensor(value: object, name: str) -> Tensor:
    """Return a value as a tensor of real numbers: a tensor, or what NumPy can make an array of.

    Raises:
        StitchError: It has no real numbers; the message begins with `name`.
    """
    try:
        return tensor_of(value, Float, name)
    except ValueError as error:
        raise StitchError(error) from None


def _card(stitch: StitchMap) -> str:
    """Return the model card of a stitch: a page of Markdown with metadata for the hub."""
    width_out, width_in = stitch.weight.shape
    source_row = _card_row("source", stitch.source, width_in)
    target_row = _card_row("target", stitch.target, width_out)
    source_name = json.dumps(plain(stitch.source.model))  # in quotes, for the Python code below
    layer = stitch.source.layer
    return f"""---
library_name: thinkalike
tags:
- model-stitching
- representation-similarity
---

# A stitch from {_in_markdown(stitch.source)} to {_in_markdown(stitch.target)}

An affine map between residual streams at two blocks. It holds no weights of either model, and fits
models with these fingerprints alone. That the stitched model does well does not show that the two
models are alike.

| | model | revision | block | width | dtype | fingerprint of the weights |
|---|---|---|---|---|---|---|
{source_row}
{target_row}

```python
stitch = thinkalike.StitchMap.from_pretrained("ORG/NAME")  # this repository
states = stitch(stitch.source.cut(thinkalike.load_model({source_name})).head(tokens, {layer}))
```
"""


def _card_row(name: str, site: Site, width: int) -> str:
    """Return the row of a site in the table of a model card.

    Args:
        name: "source" or "target".
        site: The site.
        width: The width of its states.
    """
    values = (name, site.model, site.revision, site.layer, width, site.dtype)
    cells = [_in_markdown(value) for value in values]
    # Nothing can be escaped in a code span, so that other characters are removed.
    fingerprint = re.sub(r"[^\w]", "", site.fingerprint)
    return f"| {' | '.join(cells)} | `{fingerprint}` |"


def _in_markdown(value: object) -> str:
    """Return a value as a line of text in which neither HTML nor Markdown has an effect.

    The name of a model may come from anybody, and web pages show it as part of a model card.
    """
    words = str(value).split()
    text = html.escape(plain(" ".join(words)), quote=False)
    return re.sub(r"([\\`*\[\]|!~])", r"\\\1", text)
