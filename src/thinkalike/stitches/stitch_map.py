"""A stitch as a module: one affine map from a site of one model to a site of another."""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from huggingface_hub import ModelHubMixin, hf_hub_download
from jaxtyping import Float
from torch import Tensor, nn

from thinkalike.errors import StitchError, ThinkalikeError, first_line
from thinkalike.hub import cause_of, forget_commits, resolved
from thinkalike.measures import AffineMap
from thinkalike.models import FrozenModel
from thinkalike.stitches import checkpoint
from thinkalike.stitches.site import Site
from thinkalike.stitches.stitched import StitchedModel


class StitchMap(nn.Module, ModelHubMixin):
    """The map φ(h) = W h + b from the states of one site to those of another, with all that it is made of folded in.

    The weights are float32 and frozen; `requires_grad_()` trains them further.

    Attributes:
        weight: W, (width of the target, width of the source).
        bias: b, (width of the target).
        source, target: The sites that it goes from and to.

    Raises:
        StitchError: Weight and bias do not fit each other, or are not finite.
    """

    def __init__(self, weight: Tensor, bias: Tensor, source: Site, target: Site):
        super().__init__()
        if weight.dim() != 2 or bias.shape != weight.shape[:1]:
            shapes = f"{tuple(weight.shape)} and {tuple(bias.shape)}"
            raise StitchError(f"a stitch has a weight (e, d) and a bias (e), not {shapes}: take its own files")
        if not (weight.isfinite().all() and bias.isfinite().all()):
            raise StitchError(f"the stitch from {source} to {target} holds numbers that are not finite: make it anew")
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
        if not self.source.is_same(first.target):
            raise StitchError(
                f"{self.source} is not {first.target}, so the stitch from the one does not follow that to the other: "
                "compose maps that share a layer of the same weights"
            )
        whole = _wide(self.affine) @ _wide(first.affine)
        return StitchMap(whole.weight, whole.bias, first.source, self.target)

    def inverse(self) -> StitchMap:
        """Return h ↦ W⁺ (h - b) from the target's site to the source's, with the pseudo-inverse W⁺.

        This undoes φ, which is not what leads from the target's own states to the source's: W⁺ multiplies all that
        φ does not explain by as much as the condition number of W, which a warning says. The map back by regression
        is `both_directions(...).psi`, or `load_stitch(result).back`.
        """
        warnings.warn(
            f"the inverse of a stitch with the condition number {self.affine.condition:.3g} multiplies noise by as "
            "much; a map back that is fitted does not",
            stacklevel=2,
        )
        back = self.affine.inverse()
        return StitchMap(back.weight, back.bias, self.target, self.source)

    def stitched(self, source: FrozenModel, target: FrozenModel, *, check: bool = True) -> StitchedModel:
        """Return the model that runs the source up to its layer, this map, and the target from its layer on.

        Args:
            check: Whether the models must have the weights that the stitch was made with.

        Raises:
            StitchError: They have not; their tokenizers differ; or their widths are not those of the map.
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
        return cls(*checkpoint.read(Path(folder).expanduser()))

    @classmethod
    def from_pretrained(
        cls, pretrained_model_name_or_path: str | os.PathLike[str], *, revision: str | None = None, **options: Any
    ) -> StitchMap:
        """Return the stitch of a folder, or of a repository of the hub, ORG/NAME.

        Args:
            revision: The branch, tag or commit of a repository.
            options: Of `hf_hub_download`.

        Raises:
            StitchError: The hub has no such stitch or does not give it; see `load`.
        """
        place = os.fspath(pretrained_model_name_or_path)
        if Path(place).expanduser().is_dir():
            return cls.load(place)
        with _explained(f"cannot get the stitch {place}", place, revision):
            commit = resolved("model", place, revision).sha  # so that both files are of one commit
            files = [hf_hub_download(place, name, revision=commit, **options)
                     for name in (checkpoint.CONFIG, checkpoint.WEIGHTS)]  # fmt: skip
            return cls.load(Path(files[0]).parent)

    def push_to_hub(self, repo_id: str, **options: Any) -> str:
        """Upload the stitch with its model card to a repository of the hub, ORG/NAME, which is made if it is not there.

        Args:
            options: Of `ModelHubMixin.push_to_hub`, such as private and commit_message.

        Returns:
            The address of the commit.

        Raises:
            StitchError: The hub does not take it.
        """
        with _explained(f"cannot push the stitch to {repo_id}", repo_id):
            address: str = super().push_to_hub(repo_id, **options)
        forget_commits()  # the branch has moved
        return address

    def _save_pretrained(self, save_directory: Path) -> None:
        checkpoint.write(save_directory, checkpoint.Parts(self.weight, self.bias, self.source, self.target))

    def extra_repr(self) -> str:
        return f"{self.source} ({self.weight.shape[1]}) → {self.target} ({self.weight.shape[0]})"


def _wide(fit: AffineMap) -> AffineMap:
    return AffineMap(fit.weight.double(), fit.bias.double())


@contextlib.contextmanager
def _explained(attempt: str, repository: str, revision: str | None = None) -> Iterator[None]:
    """Turn what goes wrong with the hub into one line."""
    try:
        yield
    except ThinkalikeError:
        raise
    except Exception as error:  # of the hub's library and of what it is built on
        reason = cause_of(error, repository, revision) or f"{type(error).__name__}: {first_line(error)[:200]}"
        raise StitchError(f"{attempt}: {reason}") from error
