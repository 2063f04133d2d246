"""Lineage: does one model derive from another, and which of its blocks?"""
