"""What the user wrote: a file with places, a checked run spec, a cluster."""
