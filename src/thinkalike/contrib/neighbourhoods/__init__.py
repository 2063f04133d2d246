"""Sets of neighbours compared as ReSi does: `measure=jaccard` and `measure=second_order_cosine`."""
