"""Frozen records with digests, recipe, errors, atomic publishing, processes and the ledger.

Imports no engine: importing this package is cheap.
"""
