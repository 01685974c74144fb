"""Child processes, signals and shared memory of this host."""
