"""Readers of examples from files, for more examples than fit in memory.

The `load` of a problem returns one in place of (x, y); data/streamed.py says
what a reader is, and how to write another one.
"""
