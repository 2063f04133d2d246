"""A stitch as a module: one affine map from a site of one model to a site of another."""

from __future__ import annotations

import contextlib
import json
import os
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import ModelHubMixin, hf_hub_download
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from thinkalike.digests import read_json, regular, tokenizer_fingerprint
from thinkalike.errors import StitchError, ThinkalikeError, one_line
from thinkalike.hub import cause_of, resolved
from thinkalike.measures.closed_forms import AffineMap
from thinkalike.measures.estimates import seeded
from thinkalike.models.frozen import FrozenModel

WEIGHTS, CONFIG, CARD = "model.safetensors", "config.json", "README.md"
FORMAT = {"format": "thinkalike affine stitch", "version": 1}


class StitchMap(nn.Module, ModelHubMixin):
    """The map φ(h) = W h + b from the states of one site to those of another.

    The weights are float32 and frozen; `requires_grad_()` trains them further.

    Attributes:
        weight: W, (width of the target, width of the source).
        bias: b, (width of the target).
        source, target: The sites that it goes from and to.

    Raises:
        StitchError: Weight and bias have other shapes, or entries that are no finite numbers in float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor, source: Site, target: Site):
        super().__init__()
        if weight.dim() != 2 or bias.shape != weight.shape[:1] or not weight.numel():
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise StitchError(f"a stitch has a weight (e, d) and a bias (e), not {shapes}")
        for name, tensor in (("weight", weight), ("bias", bias)):
            if not (tensor.is_floating_point() and tensor.float().isfinite().all()):
                raise StitchError(f"the {name} of a stitch is not of finite numbers ({tensor.dtype})")
        self.weight = nn.Parameter(weight.detach().float().contiguous(), requires_grad=False)
        self.bias = nn.Parameter(bias.detach().float().contiguous(), requires_grad=False)
        self.source, self.target = source, target

    def forward(self, states: Float[Tensor, "*b d"]) -> Float[Tensor, "*b e"]:
        """Return the states of the target's site, in the dtype of those given; see `AffineMap`."""
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
        begins, ends = self.source, first.target  # of the same weights, whatever the models are called
        if (begins.fingerprint, begins.layer) != (ends.fingerprint, ends.layer):
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
            StitchError: They have other weights, or their tokenizers differ.
        """
        if check:
            self.source.check_model(source)
            self.target.check_model(target)
        return StitchedModel(source, self.source.layer, self, self.target.layer, target)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write weights, sites and a model card into a folder, which is made if it is not there."""
        self.save_pretrained(Path(folder).expanduser())

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
            return cls(**parts, source=Site(**config["source"]), target=Site(**config["target"]))

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
        if Path(place).expanduser().is_dir():
            return cls.load(place)
        with explained(f"cannot get the stitch {place}", place, revision):
            commit = resolved("model", place, revision).sha  # so that both files are of one commit
            for name in (CONFIG, WEIGHTS):
                file = hf_hub_download(place, name, revision=commit, **options)
            return cls.load(Path(file).parent)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the stitch with its model card to a repository of the hub, ORG/NAME, which is made if it is not there.

        Args:
            options: Of `ModelHubMixin.push_to_hub`, such as private and commit_message.

        Returns:
            The address of the commit.

        Raises:
            StitchError: The upload fails.
        """
        with explained(f"cannot push the stitch to {repo_id}", repo_id):
            address: str = super().push_to_hub(repo_id, **options)
        resolved.cache_clear()  # the branch has moved
        return address

    def _save_pretrained(self, save_directory: Path) -> None:
        tensors = {name: getattr(self, name).detach().cpu().contiguous() for name in ("weight", "bias")}
        save_file(tensors, save_directory / WEIGHTS, metadata={"format": "pt"})
        sites = {"source": asdict(self.source), "target": asdict(self.target)}
        (save_directory / CONFIG).write_text(json.dumps({**FORMAT, **sites}, indent=1) + "\n")
        (save_directory / CARD).write_text(self._card())

    def extra_repr(self) -> str:
        return f"{self.source} ({self.weight.shape[1]}) → {self.target} ({self.weight.shape[0]})"

    def _card(self) -> str:
        source, target = self.source, self.target
        width_out, width_in = self.weight.shape
        rows = "\n".join(
            f"| {side} | {site.model} | {site.revision} | {site.layer} | {width} | {site.dtype} "
            f"| `{site.fingerprint}` |"
            for side, site, width in (("source", source, width_in), ("target", target, width_out))
        )
        return f"""---
library_name: thinkalike
tags:
- model-stitching
- representation-similarity
---

# A stitch from {source} to {target}

An affine map, W h + b, from the residual stream of {source.model} after block {source.layer} to that of {target.model}
after block {target.layer}. It holds no weights of either model.

| | model | revision | block | width | dtype | fingerprint of the weights |
|---|---|---|---|---|---|---|
{rows}

```python
from thinkalike import StitchMap, load_model

stitch = StitchMap.from_pretrained("ORG/NAME")  # this repository
states = stitch(load_model("{source.model}").head(tokens, {source.layer}))  # (batch, position, {width_out})
```

The map fits states of these weights alone: a model with another fingerprint is refused when a stitched model is made.
That the stitched model does well does not show that the two models are alike.
"""


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


@dataclass(frozen=True)
class Site:
    """The residual stream of a model after one of its blocks.

    Attributes:
        model: The name of the model.
        revision: The revision that was loaded.
        layer: The number of the block.
        fingerprint: Of the weights, see `FrozenModel.fingerprint`; it tells models apart.
        dtype: Of the weights; the fingerprint depends on it.
        settings: A digest of the configuration, see `FrozenModel.settings`; older sites have none.
    """

    model: str
    revision: str
    layer: int
    fingerprint: str
    dtype: str
    settings: str = ""

    def __post_init__(self) -> None:
        texts = (self.model, self.revision, self.fingerprint, self.dtype, self.settings)
        if type(self.layer) is not int or self.layer < 0 or not all(isinstance(each, str) for each in texts):
            raise StitchError(f"{self!r} is no site: its layer must be a number from 0 on, and all else text")

    @classmethod
    def of(cls, described: Mapping[str, Any], layer: int) -> Site:
        """Return the site of a model that `FrozenModel.describe` describes, as the provenance of results does."""
        names = {"model": "name", "revision": "revision", "fingerprint": "weights", "dtype": "dtype"}
        facts = {own: str(described[theirs]) for own, theirs in names.items()}
        return cls(layer=layer, settings=str(described.get("settings", "")), **facts)

    def __str__(self) -> str:
        return f"{self.model}:{self.layer}"

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

    Attributes:
        source, target: The models.
        phi: The map from the source's states after block `layer` to the target's after block `depth`.
        context: The most tokens of a row that both models read.

    Raises:
        StitchError: The models have different tokenizers.
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
    def generate(
        self, tokens: Int[Tensor, "b t"], steps: int, temperature: float = 0.0, seed: int = 0
    ) -> Int[Tensor, "b more"]:
        """Return the tokens with `steps` more, each the most likely one, or drawn at a temperature.

        Every step is a whole pass.

        Args:
            temperature: The divisor of the logits before a token is drawn from their softmax; 0: the most likely one.
            seed: Of the draws.

        Raises:
            StitchError: The temperature is negative, or the row would be longer than one of the models can read.
        """
        if not 0 <= temperature < float("inf"):
            raise StitchError(f"temperature={temperature} must be a number >= 0")
        if tokens.shape[1] + steps > self.context:
            longest = f"{self.context}, the most that both models read"
            raise StitchError(f"{tokens.shape[1]} tokens and steps={steps} more are longer than {longest}")
        chance = seeded(seed)
        for _ in range(steps):
            logits = self(tokens)[:, -1].float().cpu()
            if temperature:
                new = (logits / temperature).softmax(-1).multinomial(1, generator=chance)
            else:
                new = logits.argmax(-1, keepdim=True)
            tokens = torch.cat([tokens, new.to(tokens)], 1)
        return tokens
