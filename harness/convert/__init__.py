"""Configurations of other programs, converted to a run spec."""
