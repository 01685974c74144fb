"""A started run until its verdict: monitor, restarts, hangs, logs."""
