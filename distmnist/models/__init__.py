"""One model a file; the file name is the value of --model."""
