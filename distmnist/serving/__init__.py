"""The model by itself, without its training."""
