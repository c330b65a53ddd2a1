"""The center on the ps: whole or not, pulled, pushed, locked."""
