# SPDX-License-Identifier: Apache-2.0
"""Objectives: what a run makes of its records, and the loss that it trains with. One module each."""
