"""Tasks that any scheduler starts by a command of the user."""
