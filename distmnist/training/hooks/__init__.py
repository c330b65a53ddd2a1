"""Hooks of a session: when to save, evaluate, trace, stop."""
