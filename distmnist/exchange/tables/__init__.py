"""Sparse tables: a step moves the rows of its batch alone."""
