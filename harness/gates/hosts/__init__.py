"""HO: hosts, slots and the environment of a launch."""
