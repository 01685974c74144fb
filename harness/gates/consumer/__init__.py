"""Values that a configuration leaves open: the program that fills them in, and those that none does."""
