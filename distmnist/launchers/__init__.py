"""One launcher a file; the file name is the value of --launcher."""
