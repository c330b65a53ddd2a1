"""Starts a task, keeps it alive, recovers it, ends it."""
