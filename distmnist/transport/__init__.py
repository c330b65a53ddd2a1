"""How values move between a worker and the ps, and what a rule promises."""
