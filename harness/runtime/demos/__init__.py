# SPDX-License-Identifier: Apache-2.0
"""Demos of distributed training: short real runs on two CPU ranks, by torch's gloo and DeepSpeed's engines."""
