"""Merges in lineage: the parents of a mean of models are named, and nothing else is called a merge."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import tiny
from in_memory_weights import InMemory
from thinkalike.instruments.lineage.comparison import compare_models
from thinkalike.instruments.lineage.merges import merges_in_words, table_of_merges
from thinkalike.measures.merges import fit_merge
from thinkalike.measures.seeds import seeded
from thinkalike.models.units import UnitModel, Units

Weights = dict[str, Tensor]


def tunings(count: int, size: int = 4000) -> list[Tensor]:
    """An origin, and models that were tuned from it independently, by as much."""
    origin = torch.randn(size, generator=seeded(0))
    return [origin, *[origin + 0.05 * torch.randn(size, generator=seeded(1 + n)) for n in range(count)]]


@pytest.mark.parametrize("weights", [(0.5, 0.5, 0.0), (0.9, 0.1, 0.0), (0.2, 0.3, 0.5)])
def test_the_weights_of_a_mean_are_those_that_made_it(weights):
    parents = torch.stack(tunings(2))
    merged = torch.tensor(weights) @ parents
    fit = fit_merge(merged, parents)
    assert torch.allclose(fit.weights, torch.tensor(weights, dtype=torch.float64), atol=1e-4)
    assert fit.explained == pytest.approx(1, abs=1e-6)
    assert fit.is_merge


def test_a_merge_is_found_after_rounding_to_16_bits():
    origin, first, second = tunings(2)
    rounded = ((first + second) / 2).bfloat16().float()
    fit = fit_merge(rounded, torch.stack([origin, first, second]))
    assert fit.is_merge
    assert torch.allclose(fit.weights, torch.tensor([0, 0.5, 0.5], dtype=torch.float64), atol=0.02)


@pytest.mark.parametrize("count", [2, 3, 10, 30])
def test_siblings_and_their_origin_are_no_merges(count):
    """The origin is near the mean of what was tuned from it: it explains 1 - 1/k of the distance."""
    origin, *siblings = tunings(count)
    of_origin = fit_merge(origin, torch.stack(siblings))
    assert of_origin.explained == pytest.approx(1 - 1 / count, abs=0.02)
    assert not of_origin.is_merge
    sibling = fit_merge(siblings[0], torch.stack([origin, *siblings[1:]]))
    assert sibling.explained < 0.1
    assert not sibling.is_merge


def test_the_parents_of_a_merge_are_no_merges():
    origin, first, second = tunings(2)
    merged = (first + second) / 2
    assert not fit_merge(first, torch.stack([merged, second])).is_merge
    assert not fit_merge(first, torch.stack([origin, merged, second])).is_merge


def spherical_mean(first: Tensor, second: Tensor, share: float) -> Tensor:
    angle = torch.arccos(torch.cosine_similarity(first, second, dim=0))
    return (torch.sin((1 - share) * angle) * first + torch.sin(share * angle) * second) / torch.sin(angle)


@pytest.mark.parametrize("others", [[(0.6, 0.4)], [(0.6, 0.4), (0.5, 0.3)], [(0.9, 0.1), (0.5, 0.5), (0.2, 0.8)]])
@pytest.mark.parametrize("has_origin", [True, False])
def test_merges_of_the_same_parents_are_no_parents_of_each_other(others, has_origin):
    origin, first, second = tunings(2)
    merges = [origin + a * (first - origin) + b * (second - origin) for a, b in others]
    origins = [origin] if has_origin or any(sum(pair) < 1 for pair in others) else []
    candidates = torch.stack([first, *merges, second, *origins])
    expected = torch.zeros(len(candidates), dtype=torch.float64)
    expected[0], expected[len(merges) + 1] = 0.7, 0.3
    linear = fit_merge(0.7 * first + 0.3 * second, candidates)
    assert linear.is_merge
    assert torch.allclose(linear.weights, expected, atol=1e-4)
    spherical = fit_merge(spherical_mean(first, second, 0.3), candidates)
    assert spherical.is_merge
    assert torch.allclose(spherical.weights, expected, atol=0.01)


def test_a_merge_with_a_merge_is_a_mean_of_all_three_parents():
    _, first, second, third = tunings(3)
    merged = (first + second) / 2
    fit = fit_merge(0.6 * merged + 0.4 * third, torch.stack([first, second, third, merged]))
    assert fit.is_merge
    assert torch.allclose(fit.weights, torch.tensor([0.3, 0.3, 0.4, 0.0], dtype=torch.float64), atol=1e-4)


def test_a_merge_stays_a_parent_where_its_own_parents_are_not_in_the_family():
    _, first, second, third = tunings(3)
    merged = (first + second) / 2
    fit = fit_merge(0.6 * merged + 0.4 * third, torch.stack([first, third, merged]))
    assert torch.allclose(fit.weights, torch.tensor([0.0, 0.4, 0.6], dtype=torch.float64), atol=1e-4)


def test_copies_of_a_parent_share_its_weight_and_copies_of_a_merge_have_none():
    _, first, second = tunings(2)
    merged = (first + second) / 2
    fit = fit_merge(0.7 * first + 0.3 * second, torch.stack([first, first, second, merged, merged]))
    assert fit.is_merge
    assert float(fit.weights[:2].sum()) == pytest.approx(0.7, abs=1e-4)
    assert fit.weights[3:].tolist() == [0, 0]


@pytest.mark.parametrize("noise", [0.001, 0.01, 0.05])
def test_what_was_tuned_from_a_merge_is_no_merge(noise):
    _, first, second = tunings(2)
    merged = (first + second) / 2
    tuned_merge = merged + noise * torch.randn(len(merged), generator=seeded(9))
    assert not fit_merge(tuned_merge, torch.stack([first, second, merged])).is_merge
    of_merge = fit_merge(merged, torch.stack([first, second, tuned_merge]))
    assert of_merge.is_merge
    assert torch.allclose(of_merge.weights, torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), atol=1e-4)


def test_a_copy_has_the_weight_of_its_copy_alone():
    origin, first, second = tunings(2)
    fit = fit_merge(first, torch.stack([origin, first, second]))
    assert fit.weights.tolist() == [0, 1, 0]
    assert not fit.is_merge


def mean(first: Weights, second: Weights) -> Weights:
    return {name: (0.7 * weight + 0.3 * second[name]) for name, weight in first.items()}


def slerp(first: Weights, second: Weights) -> Weights:
    merged = {}
    for name, weight in first.items():
        cosine = torch.cosine_similarity(weight.flatten(), second[name].flatten(), dim=0).clamp(-1, 1)
        merged[name] = (weight + second[name]) / (2 * torch.cos(torch.arccos(cosine) / 2))
    return merged


def stacked(first: Weights, second: Weights) -> Weights:
    return {name: second[name] if ".h.2." in name or ".h.3." in name else weight for name, weight in first.items()}


def write(folder: Path, source: Path, weights: Weights) -> Path:
    shutil.copytree(source, folder)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def tuned(weights: Weights, seed: int) -> Weights:
    generator = seeded(seed)
    changed = {}
    for name, weight in weights.items():
        changed[name] = weight + 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    return changed


@pytest.fixture
def family(tmp_path) -> dict[str, Path]:
    base = tiny.write_checkpoint("gpt2", tmp_path / "base", seed=1)
    weights = load_file(base / "model.safetensors")
    return {
        "base": base,
        "first": write(tmp_path / "first", base, tuned(weights, 2)),
        "second": write(tmp_path / "second", base, tuned(weights, 3)),
    }


@pytest.mark.ci_slow
@pytest.mark.parametrize(
    ("merge", "expected"),
    [
        (
            mean,
            "merged is a merge: blocks 0 to 3 are 0.70 first + 0.30 second (explains at least 100.0 % of the squared",
        ),
        (slerp, "merged is a merge: blocks 0 to 3 are 0.50 first + 0.50 second (explains at least"),
        (
            stacked,
            "merged is a merge: blocks 0 to 1 are from first, unchanged; blocks 2 to 3 are from second, unchanged; or "
            "first, second were tuned from merged, each in its other blocks.",
        ),
    ],
)
@pytest.mark.filterwarnings("error:Attempting to set identical")
def test_both_parents_of_a_merge_are_named(
    merge: Callable[[Weights, Weights], Weights], expected, family, tmp_path, cli
):
    weights = [load_file(family[name] / "model.safetensors") for name in ("first", "second")]
    write(tmp_path / "merged", family["first"], merge(*weights))
    for names in (["first", "second", "merged"], ["merged", "base", "first", "second"]):
        folders = [str(tmp_path / name) for name in names]
        done = cli("analyze.py", "measure=lineage", f"models=[{','.join(folders)}]", f"store={tmp_path / 'store'}")
        assert set(done.result.tables["merges"]["target"]) == {"merged"}
        assert set(done.result.tables["merges"]["source"]) == {"first", "second"}
        assert expected in " ".join(done.stdout.split())


def table_of_merged(blocks: list[tuple[int, str, dict[str, float]]]) -> pd.DataFrame:
    """The table of merges for one merged model, from (block, module, weight of each parent)."""
    rows = []
    for layer, module, weights in blocks:
        for parent, weight in weights.items():
            explained = 0.9 if len(weights) > 1 else float("nan")
            rows.append(("merged", layer, module, parent, layer, weight, explained))
    columns = "target target_layer target_module source source_layer weight explained"
    return pd.DataFrame(rows, columns=columns.split())


def test_a_block_that_is_no_merge_is_not_named_with_those_around_it():
    mean_of_both = {"a": 0.7, "b": 0.3}
    (sentence,) = merges_in_words(table_of_merged([(layer, "mlp", mean_of_both) for layer in (0, 1, 3, 4)]))
    assert "blocks 0 to 1 are 0.70 a + 0.30 b (" in sentence
    assert "blocks 3 to 4 are 0.70 a + 0.30 b (" in sentence
    (control,) = merges_in_words(table_of_merged([(layer, "mlp", mean_of_both) for layer in range(5)]))
    assert "blocks 0 to 4 are 0.70 a + 0.30 b (" in control


def test_each_expert_of_a_stack_has_a_module_of_its_own_in_the_table():
    n_units, width = 64, 16
    experts = [Units(0, "mlp.experts", "down", "up", n_units, width, expert) for expert in range(2)]
    shapes = {"down": (2, n_units, width), "up": (2, width, n_units), "embedding": (64, width)}
    origin = {name: torch.randn(shape, generator=seeded(0)) for name, shape in shapes.items()}
    first, second = tuned(origin, 1), tuned(origin, 2)
    merged = {name: (first[name] + second[name]) / 2 for name in shapes}
    models = []
    for name, weights in (("first", first), ("second", second), ("merged", merged)):
        tokens = {str(number): number for number in range(64)}
        models.append(UnitModel(name, InMemory(weights), experts, tokens, "embedding", {}, []))
    pairs = itertools.combinations(models, 2)
    comparisons = [compare_models(source, target, 12, similar_units=False, n_head_tests=1) for source, target in pairs]

    table = table_of_merges(comparisons)
    assert list(zip(table["target_module"], table["source"], strict=True)) == [
        ("mlp.experts.0", "first"),
        ("mlp.experts.0", "second"),
        ("mlp.experts.1", "first"),
        ("mlp.experts.1", "second"),
    ]
    (sentence,) = merges_in_words(table)
    assert "block 0 is 0.50 first + 0.50 second (" in sentence


def weights_of_origin() -> Weights:
    """Return random weights of a model of three blocks of 64 units, of width 16."""
    origin = {
        f"{name}.{block}": torch.randn(64, 16, generator=seeded(block)) for name in ("down", "up") for block in range(3)
    }
    origin["embedding"] = torch.randn(64, 16, generator=seeded(5))
    return origin


def merges_of_family(family: dict[str, Weights]) -> pd.DataFrame:
    """Return the table of merges of models like `weights_of_origin`, by name."""
    blocks = [Units(block, "mlp", f"down.{block}", f"up.{block}", 64, 16) for block in range(3)]
    tokens = {str(number): number for number in range(64)}
    models = [
        UnitModel(name, InMemory(weights), blocks, tokens, "embedding", {}, []) for name, weights in family.items()
    ]
    pairs = itertools.combinations(models, 2)
    return table_of_merges(
        [compare_models(source, target, 12, similar_units=False, n_head_tests=1) for source, target in pairs]
    )


def with_block(weights: Weights, block: int, other: Weights) -> Weights:
    """Return weights with one block of another model."""
    return {name: other[name] if name.endswith(f".{block}") else weight for name, weight in weights.items()}


def test_copies_of_a_merge_are_merges_of_its_parents():
    first, second = tuned(weights_of_origin(), 1), tuned(weights_of_origin(), 2)
    merged = mean(first, second)
    family = {"first": first, "merged": merged, "copy": dict(merged), "second": second, "again": dict(merged)}
    assert list(merges_in_words(merges_of_family(family))) == [
        f"{name} is a merge: blocks 0 to 2 are 0.70 first + 0.30 second (explains at least 100.0 % of the squared "
        "distance from the nearest model)."
        for name in ("merged", "copy", "again")
    ]


@pytest.mark.parametrize("swapped", [False, True])
def test_models_with_equal_blocks_are_named_together(swapped):
    first, second = tuned(weights_of_origin(), 1), tuned(weights_of_origin(), 2)
    names = ("second", "first") if swapped else ("first", "second")
    shares = "0.70 first (or same) + 0.30 second" if not swapped else "0.30 second + 0.70 first (or same)"
    family = dict(zip(names, (first, second) if not swapped else (second, first), strict=True))
    family |= {"same": dict(first), "merged": mean(first, second)}
    (sentence,) = merges_in_words(merges_of_family(family))
    assert sentence.startswith(f"merged is a merge: blocks 0 to 2 are {shares} (")


def test_a_model_that_equals_a_parent_in_some_blocks_is_named_with_these():
    origin = weights_of_origin()
    first, second = tuned(origin, 1), tuned(origin, 2)
    half = with_block(first, 2, tuned(origin, 3))
    (sentence,) = merges_in_words(
        merges_of_family({"half": half, "first": first, "second": second, "merged": mean(first, second)})
    )
    assert "blocks 0 to 1 are 0.70 half (or first) + 0.30 second (" in sentence
    assert "block 2 is 0.70 first + 0.30 second (" in sentence


@pytest.mark.parametrize("has_origin", [True, False])
@pytest.mark.parametrize("tuned_blocks", [(0, 1), (0, 1, 2), (0, 1, 2, 0), (0, 0, 1)])
def test_models_that_were_tuned_in_a_block_each_are_no_merges(tuned_blocks, has_origin):
    origin = weights_of_origin()
    family = {"origin": origin} if has_origin else {}
    for number, block in enumerate(tuned_blocks):
        family[f"tuned{number}"] = with_block(origin, block, tuned(origin, 1 + number))
    assert merges_of_family(family).empty


def test_a_stack_of_parents_of_which_one_has_a_copy_is_found():
    first, second = tuned(weights_of_origin(), 1), tuned(weights_of_origin(), 2)
    family = {"first": first, "second": second, "same": dict(first), "stack": with_block(first, 2, second)}
    (sentence,) = merges_in_words(merges_of_family(family))
    assert sentence == (
        "stack is a merge: blocks 0 to 1 are from first (or same), unchanged; block 2 is from second, unchanged; or "
        "first, second were tuned from stack, each in its other blocks."
    )


def test_a_model_that_was_tuned_from_a_merge_is_not_called_one():
    first, second = tuned(weights_of_origin(), 1), tuned(weights_of_origin(), 2)
    merged = mean(first, second)
    further = {name: weight + 0.01 * torch.randn(weight.shape, generator=seeded(8)) for name, weight in merged.items()}
    table = merges_of_family({"first": first, "second": second, "merged": merged, "further": further})
    assert set(table["target"]) == {"merged"}
    assert set(table["source"]) == {"first", "second"}


def test_a_merge_is_no_parent_of_what_comes_from_its_own_parents():
    """One of the family has unchanged blocks of a parent, and one is another mean of both."""
    origin = weights_of_origin()
    first, second = tuned(origin, 1), tuned(origin, 2)
    half_merged = mean(first, second)
    stacked = dict(first)
    for name in ("down", "up"):
        half_merged[f"{name}.0"] = first[f"{name}.0"]
        stacked[f"{name}.2"] = second[f"{name}.2"]
    family = {
        "stacked": stacked,
        "half": half_merged,
        "second": second,
        "even": {name: (weight + second[name]) / 2 for name, weight in first.items()},
        "first": first,
    }
    table = merges_of_family(family)
    weights = {}
    for target, rows in table.groupby("target"):
        of_blocks = rows.pivot_table(index="target_layer", columns="source", values="weight", fill_value=0.0)
        assert set(of_blocks) == {"first", "second"}, target
        weights[target] = of_blocks["first"].round(3).to_list()
    assert weights == {"even": [0.5, 0.5, 0.5], "half": [1, 0.7, 0.7], "stacked": [1, 1, 0]}


def test_weights_that_differ_between_blocks_or_experts_are_a_range():
    shares = (0.1, 0.3, 0.9)
    of_blocks = [(layer, "mlp", {"a": share, "b": 1 - share}) for layer, share in enumerate(shares)]
    of_experts = [(0, f"mlp.{number}", {"a": share, "b": 1 - share}) for number, share in enumerate(shares)]
    for blocks, name in ((of_blocks, "blocks 0 to 2 are"), (of_experts, "block 0 is")):
        (sentence,) = merges_in_words(table_of_merged(blocks))
        assert f"{name} 0.10 to 0.90 a + 0.10 to 0.90 b (explains" in sentence


def test_experts_with_different_parents_are_no_unchanged_block():
    blocks = [(0, "mlp.0", {"a": 1.0}), (0, "mlp.1", {"b": 1.0}), (1, "mlp.0", {"a": 1.0}), (1, "mlp.1", {"a": 1.0})]
    (sentence,) = merges_in_words(table_of_merged(blocks))
    assert "the experts of block 0 have different parents among a, b (merges.csv)" in sentence
    assert "block 1 is from a, unchanged" in sentence
    (mixed,) = merges_in_words(table_of_merged([(0, "mlp.0", {"a": 0.7, "b": 0.3}), (0, "mlp.1", {"a": 1.0})]))
    assert mixed == "merged is a merge: the experts of block 0 have different parents among a, b (merges.csv)."


def test_a_family_without_a_merge_names_none(family, tmp_path, cli):
    models = ",".join(str(folder) for folder in family.values())
    done = cli("analyze.py", "measure=lineage", f"models=[{models}]", f"store={tmp_path / 'store'}")
    assert "merges" not in done.result.tables
    assert "is a merge" not in done.stdout
