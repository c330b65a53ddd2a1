"""Starts tasks on a host, watches them, restarts them, ends them."""
