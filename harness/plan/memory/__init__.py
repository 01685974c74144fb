# SPDX-License-Identifier: Apache-2.0
"""Bytes of a rank and a host: model states, activations, buffers, and when they exist together."""
