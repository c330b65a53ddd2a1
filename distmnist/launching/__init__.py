"""Describes tasks, starts, watches, restarts and ends them."""
