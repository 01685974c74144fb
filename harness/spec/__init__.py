"""The user's input: a file with places, a checked run spec, a cluster."""
