"""SQ: sequence parallelism."""
