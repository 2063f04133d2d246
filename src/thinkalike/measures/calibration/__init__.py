"""Likeness beside chance: one contract for measures of layer pairs, permutations of documents, nulls and p-values."""
