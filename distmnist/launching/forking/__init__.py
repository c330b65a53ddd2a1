"""Tasks on this machine: forks of one process that has imported TensorFlow."""
