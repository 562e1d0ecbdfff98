"""Replicas: a model version as a running server. `interface` says what one is; `local` and `kubernetes` run them."""
