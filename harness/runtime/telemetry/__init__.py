"""Measurements of a run: time, memory, FLOPs, stragglers; and the trackers that log them."""
