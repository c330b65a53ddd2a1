"""Workers' own copies of the center, and their exchange with it."""
