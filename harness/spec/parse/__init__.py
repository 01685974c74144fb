"""YAML, JSON and hjson with the place of every key."""
