"""A job of Slurm: its script, from submission to end."""
