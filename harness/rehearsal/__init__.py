"""A run made small enough for the machine at hand, and what the small run tells of the large one. Arithmetic alone."""
