"""What a fitted map carries from one model to another: linear probes and steering vectors."""
