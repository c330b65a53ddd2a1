"""The tasks of a cluster, and how they find and talk to each other."""
