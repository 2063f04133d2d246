"""What tests against rsatoolbox share: its names of the comparators, and all of them as a parameter."""

import pytest

from thinkalike.measures import COMPARATORS

THEIRS = dict(zip(COMPARATORS, ("spearman", "tau-a", "corr", "cosine", "corr_cov", "cosine_cov"), strict=True))
every = pytest.mark.parametrize("comparator", COMPARATORS)
