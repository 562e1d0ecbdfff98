"""Snapshot to verdict: checks rows against an Open Data Contract, sets broken rows aside, refuses a broken batch."""
