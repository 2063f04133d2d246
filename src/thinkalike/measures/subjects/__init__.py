"""Several subjects that saw the same stimuli: ceilings of noise, and what resampling subjects and stimuli says."""
