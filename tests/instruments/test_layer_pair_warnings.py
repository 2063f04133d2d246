"""A null without p-values says why, in the numbers that decide it."""

import pytest
import torch

from thinkalike.instruments.layer_pairs.measure import why_no_p
from thinkalike.measures.kernel_alignment import CKAMeasure
from thinkalike.measures.layer_means import LayerMeans
from thinkalike.measures.neighbours import MutualKNN


def estimate(documents, measure, **settings):
    """The estimate of two layers of random states, with a null of two permutations."""
    permutations = settings.pop("permutations", 2)
    metric = LayerMeans(1, 1, measure, permutations, **settings)
    groups = torch.zeros(len(documents), dtype=torch.long) if settings else None
    states = [[torch.randn(len(documents), 4)] for _ in range(2)]
    metric.update(*states, documents=documents, **({"groups": groups} if settings else {}))
    return metric.compute()


def test_within_tokens_it_is_the_effective_sample_size_and_not_the_number_of_documents():
    """Of 42 documents one has nearly all rows, so that they are worth few of equal length."""
    documents = torch.cat([torch.zeros(359, dtype=torch.long), 1 + torch.arange(41)])
    found = estimate(documents, MutualKNN(3), conditional_on="token")
    assert found.chance.p.isnan().all()
    assert why_no_p(found) == (
        "within tokens p needs an effective sample size of 15 in a batch, which has less "
        f"(all batches: effective sample size {400**2 / (359**2 + 41):.1f} of 42 documents)"
    )


@pytest.mark.parametrize(("count", "reason"), [(7, "p needs 8 documents in a batch, and this one has 7"), (8, "")])
def test_without_a_condition_it_is_the_number_of_documents(count, reason):
    assert why_no_p(estimate(torch.arange(48) % count, CKAMeasure())) == reason


def test_without_a_null_there_is_nothing_to_say():
    assert why_no_p(estimate(torch.arange(48) % 7, CKAMeasure(), permutations=0)) == ""
