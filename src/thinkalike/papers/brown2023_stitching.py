"""Stitching between SoLU and GeLU models: figures 1 and 6 of Brown et al. 2023, and what section 3 claims."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import pandas as pd

from thinkalike import figures
from thinkalike.instruments.asymmetry import asymmetries, penalty_difference
from thinkalike.papers.experiment import Case, Claim, Conclusion, Experiment, Part
from thinkalike.store import Result

MINI_RECIPE = ("stitch.steps=200", "stitch.warmup=20", "data.report_tokens=131072")  # 12 jobs within half an hour


class Direction(NamedTuple):
    """One stitching job of a figure: its group of comparable jobs, both activations, source and target."""

    group: str
    activations: tuple[str, str]
    source: str
    target: str

    @property
    def label(self) -> str:
        return f"{self.source} → {self.target}"


def _all_directions(group: str, models: dict[str, str]) -> list[Direction]:
    """Return all directions between models, given by their activations."""
    return [Direction(group, (a, b), models[a], models[b]) for a in models for b in models]


# what the paper could not do: no independent seeds of its models exist
OTHER_SEED = [
    Direction("3 layers, other seed", ("solu", "gelu"), "solu-3l-mini", "gelu-3l-mini-s1"),
    Direction("3 layers, other seed", ("gelu", "solu"), "gelu-3l-mini-s1", "solu-3l-mini"),
    Direction("3 layers, other seed", ("solu", "solu"), "solu-3l-mini", "solu-3l-mini-s1"),
    Direction("3 layers, other seed", ("gelu", "gelu"), "gelu-3l-mini", "gelu-3l-mini-s1"),
]
DIRECTIONS = {
    "paper": [
        *_all_directions("3 layers", {"solu": "solu-3l", "gelu": "gelu-3l"}),
        *_all_directions("4 layers", {"solu": "solu-4l", "gelu": "gelu-4l"}),
    ],
    "mini": [
        *_all_directions("3 layers", {"solu": "solu-3l-mini", "gelu": "gelu-3l-mini"}),
        *_all_directions("4 layers", {"solu": "solu-4l-mini", "gelu": "gelu-4l-mini"}),
        *OTHER_SEED,
    ],
}
MODELS = {
    scale: list(dict.fromkeys(name for each in directions for name in (each.source, each.target)))
    for scale, directions in DIRECTIONS.items()
}


def _directions(case: Case) -> list[Direction]:
    return DIRECTIONS["mini" if case.config.scale == "mini" else "paper"]


def _parts(case: Case) -> list[Part]:
    recipe = ("stitch.controls=true", *(["stitch=affine"] if case.config.recipe == "paper" else []))
    recipe += MINI_RECIPE if case.config.scale == "mini" else ()
    return [
        Part(each.label, (f"model={each.source}", f"model@target={each.target}", *recipe), "train")
        for each in _directions(case)
    ]


def _concluded(case: Case, directions: Sequence[Direction]) -> pd.DataFrame:
    parts = [case.results[each.label].table.assign(group=each.group) for each in directions]
    return pd.concat(parts, ignore_index=True)


def _figure1(case: Case) -> Conclusion:
    """Penalties of all four directions between SoLU and GeLU; at mini scale also between other seeds."""
    directions = _directions(case)
    groups = dict.fromkeys(each.group for each in directions)
    claims = [claim for group in groups for claim in _claims(case, group)]
    by_ends = {(each.source, each.target): each for each in directions}
    both = [(each, by_ends.get((each.target, each.source))) for each in directions if each.activations[0] == "solu"]
    asymmetry = [
        asymmetries(case.results[there.label], case.results[back.label]).assign(group=there.group)
        for there, back in both
        if back and back is not there
    ]
    table = _concluded(case, directions)

    def draw(folder: Path) -> None:
        figures.directions(table, folder)

    return Conclusion(table, claims, draw, {"asymmetry": pd.concat(asymmetry)})


def _figure6(case: Case) -> Conclusion:
    """The learning curves of the stitches of figure 1."""
    directions = [each for each in _directions(case) if each not in OTHER_SEED]
    curves = {each: case.results[each.label].arrays["curve"] for each in directions}
    changes = {each: curve[-30:].mean(0) - curve[:10].mean(0) for each, curve in curves.items()}
    fallen = all((change < 0).all() for each, change in changes.items() if each.source != each.target)
    worst = max(float(change.max()) for change in changes.values())
    claim = Claim("every stitch between two models learns", fallen, f"largest change of the loss {worst:+.3f} nats")

    def draw(folder: Path) -> None:
        figures.learning_curves({(each.group, each.label): curve for each, curve in curves.items()}, folder)

    return Conclusion(_concluded(case, directions), [claim], draw)


def _claims(case: Case, group: str) -> list[Claim]:
    """Return what section 3 says of SoLU and GeLU, checked on one group of directions."""
    by_activation = {each.activations: each for each in _directions(case) if each.group == group}
    to_gelu, to_solu = by_activation["solu", "gelu"], by_activation["gelu", "solu"]
    selves = [by_activation["solu", "solu"], by_activation["gelu", "gelu"]]
    return [
        _greater(case, f"{group}: SoLU into GeLU costs more than GeLU into SoLU at every layer", to_gelu, to_solu),
        _all(
            f"{group}: stitching into the same activation costs least",
            [_greater(case, "", cross, own) for cross in (to_gelu, to_solu) for own in selves],
        ),
        _greater(case, f"{group}: SoLU into SoLU stitches better than GeLU into GeLU", selves[1], selves[0]),
    ]


def _greater(case: Case, claim: str, more: Direction, less: Direction) -> Claim:
    """Say whether a direction's penalty is above another's at every layer, by its interval over the same documents."""
    results: list[Result] = [case.results[each.label] for each in (more, less)]
    difference = penalty_difference(*results)
    numbers = ", ".join(f"{difference[layer]:+.3f}" for layer in range(len(difference.value)))
    return Claim(claim, bool((difference.low > 0).all()), f"{more.label} minus {less.label} by layer: {numbers}")


def _all(claim: str, parts: Sequence[Claim]) -> Claim:
    return Claim(claim, all(part.holds for part in parts), "; ".join(part.numbers for part in parts))


EXPERIMENTS = [
    Experiment("brown2023/figure1", _figure1, MODELS, _parts),
    Experiment("brown2023/figure6", _figure6, MODELS, _parts),
]
