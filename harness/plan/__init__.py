# SPDX-License-Identifier: Apache-2.0
"""Arithmetic on a run: ranks, batch, memory, time. Judges and prints nothing."""
