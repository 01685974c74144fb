"""`harness tune`: which settings are worth a short run, what the runs measured, and the spec of the fastest.

Starts nothing and knows no process. (`harness.launching.programs.aio_tuning` is of `doctor --tune-nvme`: asynchronous I/O.)
"""
