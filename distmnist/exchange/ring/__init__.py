"""All-reduce between workers, with no ps."""
