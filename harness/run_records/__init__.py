"""Readers of run directories: the files of ranks and supervisor, as values. Renders nothing, changes nothing."""
