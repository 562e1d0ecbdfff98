"""Source to immutable snapshot: reads a file, folder, glob, query or generator, and names what it read by its content."""
