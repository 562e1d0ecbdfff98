"""Source to immutable snapshot: reads files, a query or a generator, and names what it read by its content."""
