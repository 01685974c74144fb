# SPDX-License-Identifier: Apache-2.0
"""The checks, one subject a file: `measure` runs on every rank, `judge` finds what is wrong in its figures."""
