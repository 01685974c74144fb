# SPDX-License-Identifier: Apache-2.0
"""Acceptance on a machine with one GPU: checks, each in processes of its own, and the program that runs them."""
