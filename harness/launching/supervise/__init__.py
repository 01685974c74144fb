# SPDX-License-Identifier: Apache-2.0
"""A started run until its verdict: monitor, restarts, hangs, logs."""
