"""Images: where they come from, in which order, and into the graph."""
