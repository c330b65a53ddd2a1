"""Tasks on other hosts, started by ssh."""
