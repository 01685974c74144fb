# SPDX-License-Identifier: Apache-2.0
"""Probes of this machine, and the answers of hosts: devices, memory, file systems, installed packages."""
