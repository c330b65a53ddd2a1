"""Many trainings: which, how long each, and what came of them."""
