"""Sparse tables: a step moves only the rows of its batch."""
