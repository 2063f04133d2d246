"""Text and the rows of tokens that models read; stimuli and their features."""
