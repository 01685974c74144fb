"""EX: mixtures of experts, AutoEP and ZeRO-3 leaf modules."""
