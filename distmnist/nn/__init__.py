"""Building blocks of models, and optimizers."""
