"""Session hooks: when to save, evaluate, trace, stop."""
