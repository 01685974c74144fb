"""BT: the batch triangle."""
