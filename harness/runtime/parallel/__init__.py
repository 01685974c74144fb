# SPDX-License-Identifier: Apache-2.0
"""Tensor and sequence parallelism."""
