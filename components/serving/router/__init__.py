"""Routers: what stands between callers and the replicas.

`interface.Router` says what one is; the adapters are `envoy` (a process of this machine) and `gateway` (a Gateway API
HTTPRoute in a cluster), and both pass the same test suite.
"""
