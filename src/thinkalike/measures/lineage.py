"""Lineage: do two blocks share a training history? An exact test of their hidden units.

The hidden units of an MLP have no order. Initial weights are exchangeable over units, and gradient
descent with elementwise optimisers commutes with a permutation of units. So if two models were
trained independently, on whatever text, every order of the units of one block is as likely as any
other, given everything else.

The test matches the units of two blocks by a rule that looks at weights and never at positions.
It counts the matched pairs that stand in the same position in both blocks. Under independence the
count is the number of fixed points of a random permutation (rencontres numbers, close to a Poisson
variable of mean 1 if all units are matched), so that its p-value is exact and needs no simulation.

Blocks of different numbers of units have no common positions. If units were taken out, the others
kept their order, so the test counts the inversions of the matching instead.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.special import log_ndtr
from torch import Tensor
from torch.nn.functional import normalize

# Of wider blocks, so many units are matched first, and all of them where these are suspicious.
SAMPLED_UNITS = 256

# Below this p-value of the sampled units, all units are matched.
P_TO_MATCH_ALL_UNITS = 1e-3

# Up to so many matched units, the distribution of inversions is computed; beyond, it is normal.
EXACT_INVERSIONS = 40

# p-values below this are given as this: floats end there.
LEAST_P = 1e-300


class Matching(NamedTuple):
    """Pairs of units of two blocks, each the other's nearest.

    Attributes:
        source: The position of each matched unit in the first block, ascending.
        target: The position of its partner in the second block.
    """

    source: Int[Tensor, " m"]
    target: Int[Tensor, " m"]


class UnitTest(NamedTuple):
    """How many units of two blocks are where a common history would leave them.

    Attributes:
        compared: The number of units that could be in place: of the smaller block, or of a sample.
        matched: The number of units that were matched.
        in_place: The number of matched pairs in the same position; for blocks of different
            numbers of units, the most matched pairs that are in the same order.
        by: What is compared: the "position" of units or, for blocks of different numbers of
            units, their "order".
        log_p: The logarithm of the probability, under independent training, that as many units or
            more are in place (or in order).
        log_p_of_more: The logarithm of the probability that more units are.
    """

    compared: int
    matched: int
    in_place: int
    by: Literal["position", "order"]
    log_p: float
    log_p_of_more: float

    @property
    def p(self) -> float:
        """The p-value, which is never too small: P(count >= observed)."""
        return self.corrected_p(1)

    def corrected_p(self, tests: int) -> float:
        """Return Bonferroni's p-value of one of several tests."""
        return max(math.exp(min(self.log_p + math.log(tests), 0.0)), LEAST_P)

    def randomised_p(self, uniform: float) -> float:
        """Return P(more units in place) + u P(exactly as many), uniform on [0, 1] by chance.

        "By chance" means for models that were trained independently. The p-value of a count, `p`,
        is not uniform, because counts are whole numbers.

        Args:
            uniform: u, a random number from a uniform distribution on [0, 1].
        """
        p_of_more = math.exp(self.log_p_of_more)
        return p_of_more + uniform * (math.exp(self.log_p) - p_of_more)


def compare_units(
    source: Float[Tensor, "u d"],
    target: Float[Tensor, "v d"],
    of_sample: Matching | None = None,
) -> UnitTest:
    """Test the hypothesis that two blocks were trained independently, by their hidden units.

    Units of the two blocks are matched by their weights. The test asks whether matched units have
    the same position, or, for blocks of different sizes, the same order, more often than by
    chance.

    If the source has many units, at first only a sample of them is matched, with all units of the
    target. If the sample's p-value is below `P_TO_MATCH_ALL_UNITS`, all units are matched, and
    their p-value is returned instead. The result is a valid p-value: it is only below this
    threshold if that of all units is, and only below a larger number if that of the sample is.

    Args:
        source: A vector for each of the u units of the first block, such as its input weights, in
            the residual stream that both models share.
        target: The same of the v units of the second block.
        of_sample: The matching of the source's sampled units, those of `sample_of`, with the
            target, if it was computed before.
    """
    sampled = sample_of(len(source))
    if of_sample is None:
        of_sample = match_units(source, target, sampled)
    result = test_of_matching(of_sample, sampled, len(source), len(target))
    if len(sampled) < len(source) and result.p < P_TO_MATCH_ALL_UNITS:
        every_unit = torch.arange(len(source))
        matching = match_units(source, target, every_unit)
        result = test_of_matching(matching, every_unit, len(source), len(target))
    return result


def sample_of(units: int) -> Int[Tensor, " s"]:
    """Return the positions of at most `SAMPLED_UNITS` units of a block, nearly evenly spaced.

    A block with fewer units has all of them sampled.

    Args:
        units: How many units the block has.
    """
    count = min(units, SAMPLED_UNITS)
    return torch.arange(count) * units // max(count, 1)


def match_units(
    source: Float[Tensor, "u d"],
    target: Float[Tensor, "v d"],
    sampled: Int[Tensor, " s"],
) -> Matching:
    """Match source units with target units that are each other's nearest by cosine.

    Units whose vector is zero, or that have two equally near partners, stay unmatched. An
    arbitrary choice among these would depend on the positions of units. The later test asks
    whether matched units have the same position, and would no longer be exact.

    Args:
        source: A vector for each unit of the first block, such as its input or output weights.
        target: The same of the second block.
        sampled: The positions of the source units that take part; all target units do.
    """
    if len(sampled) == 0 or len(target) == 0:
        no_units = torch.zeros(0, dtype=torch.long)
        return Matching(no_units, no_units)
    source_directions = normalize(source[sampled], dim=1)
    target_directions = normalize(target, dim=1)
    matching = mutual_nearest(source_directions @ target_directions.T)
    return Matching(sampled[matching.source], matching.target)


def mutual_nearest(similarity: Float[Tensor, "s v"]) -> Matching:
    """Match each row with a column if each is most similar to the other.

    A pair is left out if its similarity is 0, or if its row is equally similar to another column,
    or its column to another row.

    Args:
        similarity: The similarity of each row unit with each column unit, such as a cosine.
    """
    nearest_column = similarity.argmax(1)  # of each row
    nearest_row = similarity.argmax(0)  # of each column
    rows = torch.arange(len(similarity))
    is_mutual = nearest_row[nearest_column] == rows

    rows = rows[is_mutual]
    columns = nearest_column[is_mutual]
    best = similarity[rows, columns]
    has_no_tie_in_row = (similarity[rows] == best[:, None]).sum(1) == 1
    has_no_tie_in_column = (similarity[:, columns] == best[None, :]).sum(0) == 1
    is_clear = has_no_tie_in_row & has_no_tie_in_column & (best != 0)
    return Matching(rows[is_clear], columns[is_clear])


def compare_heads(source: Float[Tensor, "n h d"], target: Float[Tensor, "m k d"]) -> UnitTest:
    """Test the hypothesis that two blocks were trained independently, by their attention heads.

    Heads of the two blocks that are each other's most similar are matched, without regard to their
    positions. The test asks whether matched heads have the same position, or, for blocks with
    different numbers of heads, the same order, more often than by chance.

    If the values of a head are rotated and its output weights likewise, the model stays the same.
    So two heads with the output weights X and Y, (h, d) and (k, d), are compared by
    ‖X Y'‖² / (‖X X'‖ ‖Y Y'‖) in [0, 1], the cosine of X' X and Y' Y, which no rotation changes.

    Args:
        source: The output weights of each of n heads, as h vectors in the residual stream.
        target: The same of the m heads of the second block, in the same stream.
    """
    products = torch.einsum("nhd,mkd->nmhk", source, target)  # X Y' of every two heads
    source_sizes = (source @ source.mT).flatten(1).norm(dim=1)  # ‖X X'‖
    target_sizes = (target @ target.mT).flatten(1).norm(dim=1)  # ‖Y Y'‖
    sizes = source_sizes[:, None] * target_sizes[None, :]  # (n, m)
    similarity = products.square().sum((2, 3)) / sizes.clamp(min=torch.finfo(sizes.dtype).tiny)
    matching = mutual_nearest(similarity)
    every_source_head = torch.arange(len(source))  # none is left out, as there are few
    return test_of_matching(matching, every_source_head, len(source), len(target))


def too_few_to_test(count: int, tests: int, level: float) -> bool:
    """Return whether two blocks have too few units, or heads, for any p-value below a level.

    The test matches each unit of one block with the most similar unit of the other, and counts the
    matched units that stand at the same position in both blocks. Of the n! orders of n units, only
    one has all of them at the same position, so the least possible p-value is 1 / n!, and
    tests / n! after Bonferroni's correction.

    Args:
        count: The number n of units of an MLP, or of attention heads; in the block with fewer.
        tests: The number of pairs of blocks that are tested.
        level: The level of significance.
    """
    least_log_p = math.log(tests) - math.lgamma(count + 1)
    return least_log_p >= math.log(level)


def test_of_matching(
    matching: Matching,
    sampled: Int[Tensor, " s"],
    source_units: int,
    target_units: int,
) -> UnitTest:
    """Return the test of whether matched units, or heads, have the same positions in both blocks.

    Blocks with different numbers of units have no common positions, so the test is whether matched
    units are in the same order.

    Args:
        matching: The matched units.
        sampled: The positions of the source units that took part in the matching.
        source_units, target_units: How many units each block has.
    """
    compared = min(len(sampled), target_units)
    if source_units == target_units:
        return _test_of_positions(matching, compared, source_units)
    return _test_of_order(matching, compared)


def _test_of_positions(matching: Matching, compared: int, units: int) -> UnitTest:
    """Return the test of how many units are matched with a unit in the same position.

    The p-value is the probability of at least as many if units were in random order, as they are
    in models that were trained independently.

    Args:
        matching: The matched units.
        compared: How many units could have been matched.
        units: How many units each block has.
    """
    matched = len(matching.source)
    in_place = int((matching.source == matching.target).sum())
    return UnitTest(
        compared=compared,
        matched=matched,
        in_place=in_place,
        by="position",
        log_p=log_tail_of_positions(in_place, matched, units),
        log_p_of_more=log_tail_of_positions(in_place + 1, matched, units),
    )


def log_tail_of_positions(count: int, matched: int, units: int) -> float:
    """Return log P(at least `count` of `matched` pairs are in place) for a random order of units.

    Units of two blocks are matched in pairs. A pair is in place if both units have the same
    position in their block.

    With c the count and S_j = C(m, j) (n - j)! / n! the expected number of sets of j pairs that
    are in place, P is the alternating sum over j ≥ c of (-1)^(j - c) C(j - 1, c - 1) S_j. Each
    term is smaller than the one before, so the sum is computed relative to its first term, S_c.

    Args:
        count: The number of pairs in place.
        matched: The number m of matched pairs.
        units: The number n of units of each block.
    """
    if count <= 0:
        return 0.0
    if count > matched:
        return -math.inf
    # log C(m, c) and log (n - c)! / n!, whose sum is log S_c
    log_sets = math.lgamma(matched + 1) - math.lgamma(count + 1) - math.lgamma(matched - count + 1)
    log_orders = math.lgamma(units - count + 1) - math.lgamma(units + 1)

    relative_sum = 1.0
    term = 1.0
    for j in range(count, matched):  # from term j to term j + 1
        ratio_of_choices = j / (j - count + 1)  # C(j, c - 1) / C(j - 1, c - 1)
        ratio_of_sets = (matched - j) / ((j + 1) * (units - j))  # S_(j + 1) / S_j
        term *= -ratio_of_choices * ratio_of_sets
        relative_sum += term
        if abs(term) < 1e-17:  # below the precision of the sum
            break
    return min(log_sets + log_orders + math.log(relative_sum), 0.0)


def _test_of_order(matching: Matching, compared: int) -> UnitTest:
    """Return the test of how far matched units are in the same order in both blocks.

    It counts inversions, pairs of units whose order differs; few of them are evidence of a common
    history.

    Args:
        matching: The matched units.
        compared: How many units could have been matched.
    """
    matched = len(matching.source)
    target = matching.target.tolist()  # in the order of the source units
    inversions = inversions_of(target)
    return UnitTest(
        compared=compared,
        matched=matched,
        in_place=longest_increasing(target),  # the most matched pairs in the same order
        by="order",
        log_p=log_tail_of_inversions(inversions, matched),
        log_p_of_more=log_tail_of_inversions(inversions - 1, matched),  # more in order
    )


def inversions_of(positions: list[int]) -> int:
    """Return how many pairs in a list of different positions have the larger one first."""
    inversions = 0
    earlier: list[int] = []  # the positions before, in ascending order
    for position in positions:
        smaller_count = bisect_left(earlier, position)
        inversions += len(earlier) - smaller_count  # each larger one before makes an inversion
        earlier.insert(smaller_count, position)
    return inversions


def longest_increasing(positions: list[int]) -> int:
    """Return the length of the longest increasing subsequence of different positions."""
    # Entry l: the smallest last element of the increasing subsequences of length l + 1 so far.
    smallest_ends: list[int] = []
    for position in positions:
        length = bisect_left(smallest_ends, position)  # of the longest one that it can extend
        smallest_ends[length : length + 1] = [position]  # replaces an end, or is appended
    return len(smallest_ends)


def log_tail_of_inversions(inversions: int, matched: int) -> float:
    """Return log P(at most so many inversions) for a random order of m matched units.

    An inversion is a pair of units whose order is reversed. Up to `EXACT_INVERSIONS` units P is
    exact. For more units it is that of the normal distribution with the same mean, m (m - 1) / 4,
    and the same variance, m (m - 1) (2 m + 5) / 72. Its tails are heavier than the exact ones, so
    P is not too small.

    Args:
        inversions: The number of inversions; log P is -∞ for a negative one.
        matched: The number m of matched units.
    """
    most = matched * (matched - 1) // 2  # all pairs
    if inversions < 0:
        return -math.inf
    if inversions >= most:
        return 0.0
    if matched <= EXACT_INVERSIONS:
        probabilities = distribution_of_inversions(matched)
        return math.log(float(probabilities[: inversions + 1].sum()))
    mean = most / 2
    variance = matched * (matched - 1) * (2 * matched + 5) / 72
    # + 0.5: the continuity correction
    return float(log_ndtr((inversions + 0.5 - mean) / math.sqrt(variance)))


def distribution_of_inversions(matched: int) -> Float[Tensor, " k"]:
    """Return the probability of 0, 1, 2, ... inversions in a random order of `matched` units."""
    probabilities = torch.ones(1, dtype=torch.float64)  # of a single unit: no inversion
    for earlier_units in range(1, matched):
        # The next unit has 0 to `earlier_units` inversions with the earlier ones, each as likely.
        sums = torch.zeros(len(probabilities) + earlier_units, dtype=torch.float64)
        for inversions in range(earlier_units + 1):
            sums[inversions : inversions + len(probabilities)] += probabilities
        probabilities = sums / (earlier_units + 1)
    return probabilities


def stream_map(source: Float[Tensor, "t d"], target: Float[Tensor, "t e"]) -> Float[Tensor, "d e"]:
    """Return the orthogonal map M from one residual stream to another, x ↦ x M.

    It is the Procrustes solution for the embeddings of the same t tokens in both models: M = U V'
    with U S V' the singular value decomposition of source' target, both centred. For different
    widths it has orthonormal rows or columns. It brings weights of both models into one stream, in
    which a later test compares hidden units. It depends on embeddings alone and not on the order
    of hidden units, so the p-values of that test stay exact.

    Args:
        source: The embedding of each token in the source.
        target: The embedding of the same tokens in the target.
    """
    products = (source - source.mean(0)).T @ (target - target.mean(0))
    u, _, v_transposed = torch.linalg.svd(products.double(), full_matrices=False)
    rotation: Tensor = (u @ v_transposed).to(source.dtype)
    return rotation


def agreeing_units(reading: Matching, writing: Matching) -> int:
    """Return how many pairs of units are matched both by their input and by their output weights.

    A reordered copy keeps such pairs, which the robust test of Zhu et al. 2025 (arXiv 2502.12292)
    looks for, too. Independent models have more of them than chance gives, because units with
    similar input weights have similar output weights. So the count is evidence of similarity, but
    has no p-value under independence.

    Args:
        reading: The matching by input weights.
        writing: The matching by output weights.
    """
    of_reading = set(zip(reading.source.tolist(), reading.target.tolist(), strict=True))
    of_writing = set(zip(writing.source.tolist(), writing.target.tolist(), strict=True))
    return len(of_reading & of_writing)
