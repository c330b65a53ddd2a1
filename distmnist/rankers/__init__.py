"""Nets that rank: one a file, called as --ranker; see problems/clicks.py."""
