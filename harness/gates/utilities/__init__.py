"""UT: monitors, profilers, activation checkpointing, data efficiency, autotuning."""
