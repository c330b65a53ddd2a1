"""One data set a file; the file name is the value of --dataset."""
