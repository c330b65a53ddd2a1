"""What a task says of its steps: summaries, metrics, timelines."""
