# SPDX-License-Identifier: Apache-2.0
"""Measurements of a run: time, memory, FLOPs, stragglers; and the trackers that log them."""
