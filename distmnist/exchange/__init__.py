"""Where parameters live, and how they move between ps and workers."""
