# SPDX-License-Identifier: Apache-2.0
"""`harness simulate`: the request for the simulated device, its answer, and both sides by group of memory.

Imports nothing that computes: `harness.runtime.simulation` simulates, in a process of its own.
"""
