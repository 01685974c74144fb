# SPDX-License-Identifier: Apache-2.0
"""Readers of run directories: the files of ranks and supervisor, as values. Renders nothing, changes nothing."""
