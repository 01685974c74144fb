# SPDX-License-Identifier: Apache-2.0
"""Code of the ranks. Outside of it only `engine_watch` and `engine_witness` import torch, deepspeed or transformers.

`harness.workers` imports it, and `harness.engine_watch` single checks of it. Decisions about the run are made before,
and read from the run directory.
"""
