"""Members of a population: fine-tuned models and how alike they are, two by two."""
