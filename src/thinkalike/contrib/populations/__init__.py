"""Populations of fine-tuned classifiers (Brown et al. 2023, section 4): pairs of sentences, fine-tuning, members."""
