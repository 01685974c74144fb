"""From a checked run to a launch plan: back end, environment, run directory, resume."""
