"""What a run leaves on the disk, and reads again."""
