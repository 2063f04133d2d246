"""Natural language inference: pairs of sentences, published or made from templates, and their tokens."""
