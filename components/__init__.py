"""What each step does: one package a step, over the frozen records of `components.core`."""
