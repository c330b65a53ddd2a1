"""What a task reports about its steps: summaries, metrics, timelines."""
