"""Data: text and the rows of tokens that models read; stimuli and their features; pairs for
language inference."""
