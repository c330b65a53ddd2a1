"""The model on its own, without its training."""
