"""What the tasks of a run report about themselves, and how it is shown."""
