"""What models are made of, and optimizers."""
