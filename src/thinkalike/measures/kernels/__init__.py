"""Kernel measures: HSIC, and CKA of two sets of features, of the batches of a stream, or of all rows at once."""
