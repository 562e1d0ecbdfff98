"""Candidate → golden set → shadow → canary → verdict: how a model version meets traffic, and the way back."""
