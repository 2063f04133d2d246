"""Likeness given the token: what two sets of features have in common beyond the current token of each row."""
