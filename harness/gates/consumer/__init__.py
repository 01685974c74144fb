"""Who fills in what a configuration leaves open, and what becomes of the rest."""
