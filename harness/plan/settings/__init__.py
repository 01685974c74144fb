# SPDX-License-Identifier: Apache-2.0
"""The settings of a run that decide its memory and time, as plain values."""
