"""Rounds in which each shard has its own barrier."""
