"""Nets that rank, one per file, named by --ranker; see problems/clicks.py."""
