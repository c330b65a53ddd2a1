"""Rounds in which each shard has a barrier of its own."""
