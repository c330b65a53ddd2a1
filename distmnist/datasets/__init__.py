"""One data set per file; the file name is the value of --dataset."""
