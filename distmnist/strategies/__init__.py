"""One update rule per file; the file name is the value of --strategy."""
