"""CK: checkpoints."""
