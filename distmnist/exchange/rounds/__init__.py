"""Synchronous aggregation: rounds to which R workers contribute."""
