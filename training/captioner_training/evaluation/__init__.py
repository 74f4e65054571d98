"""Evaluation of captions: scores, grounding, calibration, trust."""
