# SPDX-License-Identifier: Apache-2.0
"""Hostile input for every reader of the harness: what is changed, who reads it, and what must not happen."""
