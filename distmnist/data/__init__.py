"""Images: where they come from, their order, and their way into the graph."""
