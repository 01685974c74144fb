# SPDX-License-Identifier: Apache-2.0
"""Configurations of other programs, converted to a run spec."""
