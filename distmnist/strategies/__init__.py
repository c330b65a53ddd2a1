"""One update rule a file; the file name is the value of --strategy."""
