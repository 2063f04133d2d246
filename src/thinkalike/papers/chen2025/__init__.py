"""Chen, Merullo, Stolfo & Pavlick 2025: transferring linear features across language models with model stitching.

arXiv 2506.06609, NeurIPS 2025. What the paper says without a number is asked here of thresholds of this project's own,
which stand in the claims.
"""
