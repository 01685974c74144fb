# SPDX-License-Identifier: Apache-2.0
"""The run that a spec and a cluster make: ranks, parallel sizes, batch sizes, and what the harness chooses."""
