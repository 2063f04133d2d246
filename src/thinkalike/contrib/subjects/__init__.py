"""Several recordings of the same stimuli: subjects, beside models."""
