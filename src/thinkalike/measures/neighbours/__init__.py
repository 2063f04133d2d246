"""Measures of which rows are near which, whatever the distances."""
