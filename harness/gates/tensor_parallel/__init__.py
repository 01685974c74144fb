"""TP: AutoTP."""
