# SPDX-License-Identifier: Apache-2.0
"""Supervision of a started run until its verdict: monitor, restarts, hangs, logs."""
