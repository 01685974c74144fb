# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed at random moments and gone on with: nothing may be lost, torn or left behind."""
