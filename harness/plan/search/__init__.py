# SPDX-License-Identifier: Apache-2.0
"""Other settings, GPUs and lengths: what would fit, and what it costs."""
