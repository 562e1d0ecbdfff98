"""Routers: what stands between the scoring service and the replicas, one file an engine."""
