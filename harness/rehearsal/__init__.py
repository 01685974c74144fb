# SPDX-License-Identifier: Apache-2.0
"""Shrinks a run to the machine at hand, and extrapolates from the small run to the whole one. Arithmetic alone."""
