# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of other programs: told by their names, sizes and outlines. Nothing of them is run."""
