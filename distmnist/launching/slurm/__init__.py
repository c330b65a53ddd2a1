"""A Slurm job: its script, from submission to end."""
