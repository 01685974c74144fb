"""OP: optimizers, Muon and learning-rate schedulers."""
