"""Text: documents, their split, and the rows of tokens that language models read."""
