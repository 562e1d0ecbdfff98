"""Imported once by the fork server: what launcher and ranks load, before they are forked."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("DS_ACCELERATOR", "cpu")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

import components.models.causal_lm.task
import components.training.train
import components.training.worker  # noqa: F401
from components.models.spec import spec_for
from components.training.engine import _deepspeed

_deepspeed()
_ = spec_for("causal_lm").task, spec_for("causal_lm").preparation
