"""The test of lineage: its null by counting and on independent models, and models of known origin."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping

import pytest
import torch
from benchmarks.lineage import INDEPENDENT_MINIS
from scipy.stats import kstest
from torch import Tensor

import tuned_minis
from thinkalike.instruments.lineage.comparison import (
    Comparison,
    comparable_streams,
    compare_models,
    table_of_origins,
    table_of_pairs,
)
from thinkalike.instruments.lineage.screen import LARGEST_SHARE_OF_INDEPENDENT, LEAST_SHARE_OF_REORDERED_COPY
from thinkalike.measures import lineage
from thinkalike.measures.seeds import seeded
from thinkalike.models.model_config import configured
from thinkalike.models.units import UnitModel, open_units, unit_model

OTHER_SEED = "gpt2-mini-s1"
MODEL = "gpt2-mini"
BLOCK = "transformer.h.{}."
READING = "mlp.c_fc.weight"  # (d, u)
WRITING = "mlp.c_proj.weight"  # (u, d)
EMBEDDING = "transformer.wte.weight"

Changed = dict[str, Tensor]


@pytest.fixture(scope="module")
def models() -> dict[str, UnitModel]:
    """The bundled models that were trained independently of each other."""
    return {name: open_units(configured(name, {}), name) for name in INDEPENDENT_MINIS}


class InMemory:
    """Weights in a dictionary."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self.tensors = tensors

    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self.tensors.items()}

    def read(self, name: str) -> Tensor:
        return self.tensors[name]


def weights_of(model: UnitModel) -> Changed:
    return {name: model.weights.read(name).float() for name in model.weights.shapes()}


def planted(model: UnitModel, weights: Changed, tokens: Mapping[str, int] | None = None) -> UnitModel:
    """A model with other weights, and the same vocabulary unless another one is given."""
    return unit_model("copy", InMemory(weights), tokens or model.tokens, {"name": "copy"})


def compared(source: UnitModel, target: UnitModel, similar_units: bool = False) -> Comparison:
    return compare_models(source, target, len(source.units) * len(target.units), similar_units)


def origin_of_blocks(source: UnitModel, target: UnitModel) -> dict[int, float]:
    """The origin of each block of the target; NaN: none."""
    found = table_of_origins(compared(source, target))
    return dict(zip(found["target_layer"], found["source_layer"], strict=True))


def assert_origins(source: UnitModel, target: UnitModel, expected: Mapping[int, int]) -> None:
    """Blocks have these origins with p < 1e-6, and no other pair of blocks has p < .01, corrected."""
    table = table_of_pairs(compared(source, target))
    for row in table[table["target_module"] != "embedding"].itertuples():
        if expected.get(row.target_layer) == row.source_layer:
            assert row.p_corrected < 1e-6, row
        else:
            assert row.p_corrected > 0.01, row
    found = origin_of_blocks(source, target)
    assert {block: origin for block, origin in found.items() if not math.isnan(origin)} == expected


def in_place_counts(units: int, matched: int) -> list[float]:
    """P(count >= k) for k = 0..matched over all orders of units, by enumeration."""
    counts = []
    for order in itertools.permutations(range(units)):
        counts.append(sum(order[unit] == unit for unit in range(matched)))
    return [sum(count >= least for count in counts) / len(counts) for least in range(matched + 1)]


@pytest.mark.parametrize(("units", "matched"), [(1, 1), (4, 4), (6, 6), (6, 3), (7, 5), (5, 0)])
def test_the_tail_of_positions_is_that_of_all_orders(units, matched):
    expected = in_place_counts(units, matched)
    for count, probability in enumerate(expected):
        assert math.exp(lineage.log_tail_of_positions(count, matched, units)) == pytest.approx(probability, rel=1e-12)
    assert lineage.log_tail_of_positions(matched + 1, matched, units) == -math.inf


def test_the_tail_of_positions_of_wide_blocks_is_that_of_a_poisson_variable():
    poisson = 1 - math.exp(-1) * sum(1 / math.factorial(count) for count in range(4))
    assert math.exp(lineage.log_tail_of_positions(4, 1536, 1536)) == pytest.approx(poisson, rel=1e-6)
    assert lineage.log_tail_of_positions(1536, 1536, 1536) == pytest.approx(-math.lgamma(1537))


@pytest.mark.parametrize("matched", [1, 2, 5, 7])
def test_the_tail_of_inversions_is_that_of_all_orders(matched):
    counts = []
    for order in itertools.permutations(range(matched)):
        descents = sum(first > second for first, second in itertools.combinations(order, 2))
        assert lineage.inversions_of(list(order)) == descents
        counts.append(descents)
    for least in range(max(counts) + 1):
        expected = sum(count <= least for count in counts) / len(counts)
        assert math.exp(lineage.log_tail_of_inversions(least, matched)) == pytest.approx(expected)


def test_the_normal_tail_of_inversions_joins_the_exact_one(monkeypatch):
    matched = lineage.EXACT_INVERSIONS
    few = matched * (matched - 1) // 5
    exact = lineage.log_tail_of_inversions(few, matched)
    monkeypatch.setattr(lineage, "EXACT_INVERSIONS", 0)
    normal = lineage.log_tail_of_inversions(few, matched)
    assert exact < normal == pytest.approx(exact, rel=0.1)


def test_the_longest_increasing_run_skips_what_is_out_of_order():
    assert lineage.longest_increasing([0, 5, 1, 2, 9, 3]) == 4
    assert lineage.longest_increasing([]) == 0


def test_units_that_are_each_others_nearest_are_matched():
    source = torch.randn(40, 8, generator=seeded(0))
    order = torch.randperm(40, generator=seeded(1))
    matching = lineage.match_units(source, 3 * source[order], torch.arange(40))
    assert torch.equal(order[matching.target], matching.source)
    assert len(matching.source) == 40


def test_zero_and_repeated_units_stay_unmatched():
    """An arbitrary choice among them would depend on positions."""
    source = torch.randn(6, 4, generator=seeded(0))
    source[1] = 0
    source[3] = source[4]
    matching = lineage.match_units(source, source, torch.arange(6))
    assert matching.source.tolist() == matching.target.tolist() == [0, 2, 5]
    zero = torch.zeros(6, 4)
    assert lineage.compare_units(zero, zero).p == 1
    assert lineage.compare_units(source[:0], source).p == 1


def test_a_sample_of_units_decides_whether_all_are_matched():
    source = torch.randn(600, 32, generator=seeded(0))
    target = torch.randn(600, 32, generator=seeded(1))
    independent = lineage.compare_units(source, target)
    assert independent.compared == lineage.SAMPLED_UNITS
    assert independent.p > lineage.P_TO_MATCH_ALL_UNITS
    same = lineage.compare_units(source, source + 0.1 * target)
    assert same.compared == same.in_place == 600


def test_p_values_of_random_blocks_are_uniform():
    randomised = []
    for seed in range(400):
        generator = seeded(seed)
        source = torch.randn(60, 8, generator=generator)
        target = torch.randn(60, 8, generator=generator)
        test = lineage.compare_units(source, target)
        randomised.append(test.randomised_p(float(torch.rand(1, generator=generator))))
        assert test.p >= test.randomised_p(0.999)
    assert kstest(randomised, "uniform").pvalue > 0.05


def test_the_map_of_streams_is_the_rotation_between_them():
    tokens = torch.randn(200, 12, generator=seeded(0), dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(12, 12, generator=seeded(1), dtype=torch.float64)).Q
    assert torch.allclose(lineage.stream_map(tokens, 5 * tokens @ rotation + 1), rotation)
    narrow = lineage.stream_map(tokens, tokens @ rotation[:, :7])
    assert torch.allclose(narrow.T @ narrow, torch.eye(7, dtype=torch.float64))


@pytest.mark.ci_slow
def test_p_values_of_independent_models_are_uniform(models):
    """Seeds, families and texts differ. Streams are aligned by their embeddings, as no two share one."""
    generator = seeded(0)
    randomised = []
    for first, second in itertools.combinations(models.values(), 2):
        comparison = compared(first, second)
        assert comparison.streams.basis == "aligned"
        for pair in comparison.pairs:
            uniform = float(torch.rand(1, generator=generator))
            randomised.append(pair.test.randomised_p(uniform))
    assert len(randomised) > 1000
    assert kstest(randomised, "uniform").pvalue > 0.05
    assert sum(p < 0.05 for p in randomised) / len(randomised) <= 0.06


def test_p_values_of_independent_models_are_uniform_without_alignment(models):
    """Streams of one width, as they are stored: no unit of one model has a like one in the other."""
    generator = seeded(0)
    randomised = []
    for first, second in itertools.combinations(models.values(), 2):
        if first.units[0].width == second.units[0].width:
            of_first = [first.reading(units) for units in first.units]
            of_second = [second.reading(units) for units in second.units]
            for source, target in itertools.product(of_first, of_second):
                uniform = float(torch.rand(1, generator=generator))
                randomised.append(lineage.compare_units(source, target).randomised_p(uniform))
    assert len(randomised) > 600
    assert kstest(randomised, "uniform").pvalue > 0.05
    assert sum(p < 0.05 for p in randomised) / len(randomised) <= 0.06


def test_the_published_test_alarms_on_independent_seeds(models):
    """Agreement of two matchings, read as a Poisson count, has p < 1e-6 for models of other seeds."""
    first, second = models[MODEL], models[OTHER_SEED]
    pairs = compared(first, second, similar_units=True).pairs
    assert max(pair.similar_share or 0 for pair in pairs) < LARGEST_SHARE_OF_INDEPENDENT
    agreeing = sum(round((pair.similar_share or 0) * 256) for pair in pairs)
    expected = sum(len(pair.match_by_input.source) / 256 for pair in pairs)
    log_chance = agreeing * math.log(expected) - expected - math.lgamma(agreeing + 1)
    assert log_chance < math.log(1e-6)
    assert sum(pair.test.in_place for pair in pairs) < 2 * expected


def noisy(weights: Changed, size: float = 0.3) -> Changed:
    """Weights as a tuned copy has them: every tensor moved by a share of its spread."""
    generator = seeded(3)
    moved = {}
    for name, tensor in weights.items():
        noise = torch.randn(tensor.shape, generator=generator)
        moved[name] = tensor + size * tensor.std() * noise
    return moved


def rounded(weights: Changed, bits: int) -> Changed:
    """Weights rounded to so many bits, the largest of each row deciding the step."""
    steps = 2 ** (bits - 1) - 1
    changed = {}
    for name, tensor in weights.items():
        size = tensor.abs().amax(-1, keepdim=True).clamp(min=1e-9)
        changed[name] = (tensor / size * steps).round() / steps * size
    return changed


def low_rank(weights: Changed) -> Changed:
    """Weights with a matrix of rank 2 and half their size added, as LoRA does."""
    changed = dict(weights)
    for name, tensor in weights.items():
        if tensor.dim() == 2:
            generator = seeded(len(changed) + tensor.shape[0])
            down = torch.randn(tensor.shape[0], 2, generator=generator)
            up = torch.randn(2, tensor.shape[1], generator=generator)
            product = down @ up
            changed[name] = tensor + 0.5 * product * tensor.norm() / product.norm()
    return changed


def slerp(first: Changed, second: Changed) -> Changed:
    """Weights half way on the arc between those of two tuned copies."""
    changed = {}
    for name, tensor in first.items():
        cosine = torch.cosine_similarity(tensor.flatten(), second[name].flatten(), dim=0).clamp(-1, 1)
        share = 1 / (2 * torch.cos(torch.arccos(cosine) / 2))
        changed[name] = share * (tensor + second[name])
    return changed


COPIES: dict[str, Callable[[Changed], Changed]] = {
    "itself": dict,
    "tuned": noisy,
    "low rank": low_rank,
    "3 bits": lambda weights: rounded(weights, 3),
    "4 bits": lambda weights: rounded(weights, 4),
    "merged": lambda weights: slerp(noisy(weights), low_rank(weights)),
}


@pytest.fixture(scope="module")
def tunings() -> dict[str, Changed]:
    """Copies that were trained on narrow text, and merges of two of them."""
    first, second = tuned_minis.tuned(1), tuned_minis.tuned(2)
    by_low_rank = tuned_minis.tuned_by_low_rank(3)
    return {
        "all weights": first,
        "low rank": by_low_rank,
        "merged": slerp(first, second),
        "merged with low rank": slerp(first, by_low_rank),
        "tuned, then 3 bits": rounded(first, 3),
    }


@pytest.mark.parametrize("tuning", ["all weights", "low rank", "merged", "merged with low rank", "tuned, then 3 bits"])
def test_a_copy_that_was_trained_further_has_every_block_of_its_origin(models, tunings, tuning):
    source = models[MODEL]
    weights = tunings[tuning]
    moved = [(weights[name] - weight).norm() / weight.norm() for name, weight in weights_of(source).items()]
    assert max(moved) > 0.05, "control"
    assert_origins(source, planted(source, weights), {block: block for block in range(6)})


@pytest.mark.parametrize("change", COPIES)
def test_a_changed_copy_has_every_block_of_its_origin(models, change):
    source = models[MODEL]
    copy = planted(source, COPIES[change](weights_of(source)))
    assert_origins(source, copy, {block: block for block in range(6)})


def rearranged(weights: Changed, order: list[int]) -> Changed:
    """Weights whose blocks are those of these numbers, some left out or more than once."""
    changed = {name: tensor for name, tensor in weights.items() if ".h." not in name}
    for number, block in enumerate(order):
        for name, tensor in weights.items():
            if name.startswith(BLOCK.format(block)):
                changed[name.replace(BLOCK.format(block), BLOCK.format(number))] = tensor
    return changed


def test_blocks_that_were_taken_out_are_missing(models):
    source = models[MODEL]
    copy = planted(source, noisy(rearranged(weights_of(source), [0, 1, 4, 5])))
    assert_origins(source, copy, {0: 0, 1: 1, 2: 4, 3: 5})


def test_blocks_that_were_doubled_have_one_origin(models):
    source = models[MODEL]
    copy = planted(source, noisy(rearranged(weights_of(source), [0, 1, 2, 1, 2, 3, 4, 5])))
    assert_origins(source, copy, {0: 0, 1: 1, 2: 2, 3: 1, 4: 2, 5: 3, 6: 4, 7: 5})


def test_one_block_of_another_model_is_told_apart(models):
    source, other = models[MODEL], models[OTHER_SEED]
    weights = noisy(weights_of(source))
    for name, tensor in weights_of(other).items():
        if name.startswith(BLOCK.format(3)):
            weights[name] = tensor
    copy = planted(source, weights)
    assert_origins(source, copy, {0: 0, 1: 1, 2: 2, 4: 4, 5: 5})
    # The block keeps the stream of the model that it was taken from.
    reading = other.reading(other.units[3])
    assert lineage.compare_units(reading, copy.reading(copy.units[3])).in_place == 256


def test_units_that_were_taken_out_leave_the_others_in_order(models):
    source = models[MODEL]
    weights = noisy(weights_of(source))
    for block in range(6):
        remaining = torch.randperm(256, generator=seeded(block))[:128].sort().values
        reading, writing = BLOCK.format(block) + READING, BLOCK.format(block) + WRITING
        weights[reading] = weights[reading][:, remaining]
        weights[writing] = weights[writing][remaining]
    assert_origins(source, planted(source, weights), {block: block for block in range(6)})


def test_a_vocabulary_without_a_fifth_of_its_tokens_changes_nothing(models):
    source = models[MODEL]
    weights = noisy(weights_of(source))
    kept = [token for number, token in enumerate(source.tokens) if number % 5]
    weights[EMBEDDING] = weights[EMBEDDING][[source.tokens[token] for token in kept]]
    tokens = {token: row for row, token in enumerate(kept)}
    copy = planted(source, weights, tokens)
    assert comparable_streams(source, copy).basis == "shared"
    assert_origins(source, copy, {block: block for block in range(6)})


def test_a_rotated_stream_is_aligned_by_the_embeddings(models):
    """The gains of norms are folded into the weights that read them, as a rotation needs."""
    source = models[MODEL]
    weights = noisy(weights_of(source), 0.1)
    rotation = torch.linalg.qr(torch.randn(64, 64, generator=seeded(0))).Q
    weights[EMBEDDING] = 3 * weights[EMBEDDING] @ rotation
    for block in range(6):
        gains = weights[BLOCK.format(block) + "ln_2.weight"]
        reading, writing = BLOCK.format(block) + READING, BLOCK.format(block) + WRITING
        weights[reading] = rotation.T @ (gains[:, None] * weights[reading])
        weights[writing] = weights[writing] @ rotation
    copy = planted(source, weights)
    assert comparable_streams(source, copy).basis == "aligned"
    assert_origins(source, copy, {block: block for block in range(6)})


def test_rescaled_queries_and_keys_change_nothing(models):
    source = models[MODEL]
    weights = weights_of(source)
    for block in range(6):
        weights[BLOCK.format(block) + "attn.c_attn.weight"][:, :64] *= 7
        weights[BLOCK.format(block) + "attn.c_attn.weight"][:, 64:128] /= 7
    assert_origins(source, planted(source, weights), {block: block for block in range(6)})


def test_reordered_units_are_alike_and_no_descent(models):
    source = models[MODEL]
    weights = noisy(weights_of(source))
    for block in range(6):
        order = torch.randperm(256, generator=seeded(block))
        reading, writing = BLOCK.format(block) + READING, BLOCK.format(block) + WRITING
        weights[reading] = weights[reading][:, order]
        weights[writing] = weights[writing][order]
    copy = planted(source, weights)
    assert_origins(source, copy, {})
    for pair in compared(source, copy, similar_units=True).pairs:
        is_reordered_copy = (pair.similar_share or 0) > LEAST_SHARE_OF_REORDERED_COPY
        assert is_reordered_copy == (pair.source.block == pair.target.block), pair


def test_a_block_of_zeros_has_no_origin(models):
    source = models[MODEL]
    weights = weights_of(source)
    weights[BLOCK.format(2) + READING] = torch.zeros(64, 256)
    copy = planted(source, weights)
    assert_origins(source, copy, {block: block for block in range(6) if block != 2})
