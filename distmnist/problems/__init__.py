"""What can be learnt: a file each; a user's own is another, by --problem."""
