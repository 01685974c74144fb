"""The sections of the run spec, a file each: one field at a time, never combinations."""
