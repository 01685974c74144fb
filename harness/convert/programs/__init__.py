# SPDX-License-Identifier: Apache-2.0
"""The training programs whose files `harness adopt` converts: their keys, and their defaults by release."""
