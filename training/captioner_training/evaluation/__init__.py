"""What a trained model is worth: scores, grounding, calibration."""
