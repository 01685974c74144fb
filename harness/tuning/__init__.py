# SPDX-License-Identifier: Apache-2.0
"""`harness tune`: candidates for short runs, their measurements, and the spec of the fastest.

Starts no process. (`harness.launching.programs.aio_tuning` is for `doctor --tune-nvme`: asynchronous I/O.)
"""
