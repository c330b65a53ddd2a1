"""One launcher per file; the file name is the value of --launcher."""
