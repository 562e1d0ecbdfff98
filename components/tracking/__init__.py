"""Experiment tracking and the model registry, behind one adapter."""
