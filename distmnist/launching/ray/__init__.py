"""Ray as a host of tasks: each is an actor in a placement group."""
