"""What the tasks of a run write of themselves, and what is shown of it."""
