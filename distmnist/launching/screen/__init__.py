"""What the user sees of a run: lines, logs, a table, how it ended."""
