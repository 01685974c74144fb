# SPDX-License-Identifier: Apache-2.0
"""Code of the ranks: torch, deepspeed and transformers are imported here and nowhere else in the package.

Only `harness.workers` imports it; decisions about the run are made before, and read from the run directory.
"""
