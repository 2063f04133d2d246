"""Populations of fine-tuned classifiers of sentence pairs (Brown et al. 2023, section 4)."""
