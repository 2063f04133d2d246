"""What functions are given: arrays of any sort, made into tensors."""
