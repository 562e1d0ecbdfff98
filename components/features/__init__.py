"""Featurise: clean rows become a point-in-time correct training set and an online store."""
