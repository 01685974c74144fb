"""Run directories, read back: what ranks and supervisor wrote of a run, as values. Draws nothing, changes nothing."""
