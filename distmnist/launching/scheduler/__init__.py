"""Tasks that any scheduler starts, through a command that the user gives."""
