"""A training from its data to its report: steps, hooks, the chief."""
