"""Scripts that run in a replica's own container, with the standard library alone."""
