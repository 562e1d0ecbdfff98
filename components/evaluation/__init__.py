"""Model and held-out rows to evidence: metrics with intervals, baselines, slices, the champion on the same rows."""
