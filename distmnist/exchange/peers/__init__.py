"""Exchanges of weights between two workers, past the ps."""
