"""Many trainings: which ones, how long each, and their results."""
