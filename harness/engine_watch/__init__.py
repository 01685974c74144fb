# SPDX-License-Identifier: Apache-2.0
"""Checks of the running engine in anybody's training.

Nothing in here imports the loop of the harness or its patches, applies a patch or builds an op: the DeepSpeed is the
user's own.
"""
