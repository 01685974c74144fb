"""Probes of this machine, and the answers of hosts: devices, memory, file systems, installed packages."""
