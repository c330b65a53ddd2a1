"""Describes, starts, watches, restarts and ends tasks."""
