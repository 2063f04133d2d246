"""What a start saves: courses whose answer is known."""

import math

import pytest
import torch

from thinkalike.contrib.sae.fitting import Course, break_even, break_even_table, over_seeds, savings, savings_table

TOKENS = [0, *(125 * 2**place for place in range(8))]


def course(name: str, speed: float, fixed: float = 0.0, start: float = 0.0, seeds: int = 3) -> Course:
    """One that explains start + log2(1 + speed · tokens / 1000) / 10 after so many tokens, a little more each seed."""
    curve = start + torch.log2(1 + speed * torch.tensor(TOKENS) / 1000) / 10
    return Course(name, TOKENS, curve[:, None] + torch.linspace(0, 0.01, seeds), fixed, 2.0)


def test_an_equal_start_saves_nothing_less_its_cost():
    plain = course("a", 1.0)
    torch.testing.assert_close(savings(course("b", 1.0), plain), torch.zeros(8, 3).double())
    dear = savings(course("b", 1.0, fixed=500.0), plain)
    torch.testing.assert_close(dear[:, 0], -500 / (2 * torch.tensor(TOKENS[1:]).double()))


def test_a_start_twice_as_fast_saves_half_and_breaks_even():
    plain, fast = course("a", 1.0), course("b", 2.0, fixed=1000.0)
    saved = savings(fast, plain)
    budget = torch.tensor(TOKENS[1:]).double()
    expected = 1 - (1000 + 2 * budget / 2) / (2 * budget)
    torch.testing.assert_close(saved[2:], expected[2:, None].expand(6, 3), rtol=0, atol=0.02)
    even = break_even(fast, plain)
    assert ((even > 900) & (even < 1100)).all(), "1000 + n = 2 n"


def test_between_two_looks_it_is_a_line_over_the_logarithm():
    one = Course("a", [0, 1000, 4000], torch.tensor([[0.0], [0.5], [0.7]]), 0.0, 1.0)
    goals = torch.tensor([[0.0], [0.25], [0.5], [0.6], [0.7], [0.71]])
    assert one.reaches(goals).flatten().tolist() == pytest.approx([0, 500, 1000, 2000, 4000, math.inf])
    falling = Course("a", [0, 1000, 4000, 8000], torch.tensor([[0.0], [0.5], [0.4], [0.7]]), 0.0, 1.0)
    assert falling.reaches(torch.tensor([[0.45], [0.5]])).flatten().tolist() == pytest.approx([900, 1000]), "first time"


def test_one_that_never_gets_there_saves_less_than_is_said():
    slow, plain = course("b", 0.1), course("a", 1.0)
    table, _ = savings_table([plain, slow])
    assert table["reached"].tolist() == [1.0] * 4 + [0.0] * 4
    assert (table["saved"] <= 0).all()
    assert table["saved"].iloc[-1] == 0, "all of its tokens cost as much as those of the other"
    assert break_even(slow, plain).isinf().all()


def test_tables_compare_each_start_with_those_before_it():
    courses = [course("random", 1.0), course("least_squares", 1.5), course("transferred", 3.0)]
    table, by_seed = savings_table(courses)
    pairs = list(dict.fromkeys(zip(table["start"], table["against"], strict=True)))
    assert pairs == [("least_squares", "random"), ("transferred", "random"), ("transferred", "least_squares")]
    assert by_seed.shape == (len(table), 3)
    torch.testing.assert_close(torch.tensor(table["saved"].tolist(), dtype=torch.float64), by_seed.mean(-1))
    assert ((table["saved_low"] <= table["saved"]) & (table["saved"] <= table["saved_high"])).all()
    assert list(break_even_table(courses)["start"]) == [start for start, _ in pairs]


def test_intervals_over_seeds_are_students():
    values = torch.tensor([[1.0, 2.0, 3.0, 6.0]], dtype=torch.float64)
    found = over_seeds(values)
    half = 3.182446305 * values.std() / 2
    assert (found.value.item(), found.low.item()) == pytest.approx((3.0, 3.0 - half.item()))
    alone = over_seeds(values[:, :1])
    assert (alone.low.item(), alone.high.item()) == (-math.inf, math.inf)
