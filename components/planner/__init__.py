"""Does it fit, on how many GPUs, how fast: predictions from published facts, each with its error band."""
