# SPDX-License-Identifier: Apache-2.0
"""YAML, JSON and hjson with the place of every key."""
