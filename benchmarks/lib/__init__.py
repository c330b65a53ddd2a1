"""What the benchmarks share: runs, their processes, faults, links, tables."""
