"""Run -> DeepSpeed JSON, with the reason for every key. Judges nothing: that is what gates are for."""

from harness.render.config import DSConfig, render

__all__ = ["DSConfig", "render"]
