"""The one image that all components name."""

import os

IMAGE = os.environ.get("PILOTLINE_IMAGE", "pilotline/pilotline-python:0.1.0")
