# SPDX-License-Identifier: Apache-2.0
"""Programs and helpers that several test folders share."""
