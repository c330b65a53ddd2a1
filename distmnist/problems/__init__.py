"""What can be learnt, one problem per file; --problem names a user's own."""
