"""One model per file; the file name is the value of --model."""
