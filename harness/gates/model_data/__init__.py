"""MD: model, data and length of training."""
