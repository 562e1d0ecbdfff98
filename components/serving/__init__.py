"""Serving: from a model version to answered decisions.

`stack.LocalStack` runs it on one machine: model servers (`engines`, `replica`) behind Envoy (`router.envoy`), and
before them the scoring service (`scoring_service`), which draws the arm, decides and keeps the decision log.
"""
