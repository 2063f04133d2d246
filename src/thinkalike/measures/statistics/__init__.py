"""Statistics: estimates with their intervals, folds of stimuli, groups of models, and what each measure promises."""
