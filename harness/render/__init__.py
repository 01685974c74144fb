# SPDX-License-Identifier: Apache-2.0
"""Run -> DeepSpeed JSON, with the reason for every key. Judges nothing: the gates do."""

from harness.render.ds_config import DSConfig, render_ds_config, render_with_tuned_defaults

__all__ = ["DSConfig", "render_ds_config", "render_with_tuned_defaults"]
