"""Targets of speed and memory, measured in one run and printed; never part of the tests."""
