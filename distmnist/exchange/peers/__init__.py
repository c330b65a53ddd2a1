"""Exchanges of weights between two workers, bypassing the ps."""
