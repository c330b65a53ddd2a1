"""Training, from the data to the report: steps, hooks, the chief."""
