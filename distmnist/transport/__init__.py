"""The wire between a worker and the ps, and the contract of a rule."""
