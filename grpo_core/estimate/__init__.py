"""What a run will cost, from a short calibration on its own model, data and device."""
