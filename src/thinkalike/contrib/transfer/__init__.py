"""Probes and steering vectors that maps, fitted on text, carry from one model to another."""
