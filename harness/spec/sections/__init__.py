# SPDX-License-Identifier: Apache-2.0
"""The sections of the run spec, a file each: one field at a time, never combinations."""
