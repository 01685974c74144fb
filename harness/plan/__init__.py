"""Arithmetic on a run: ranks, batch, memory, time. Judges and prints nothing."""
