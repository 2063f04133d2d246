"""Measures of what models predict: divergence and disagreement of logits."""
