"""The user's view of a run: lines, logs, a table."""
