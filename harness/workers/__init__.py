# SPDX-License-Identifier: Apache-2.0
"""Programs that run as processes of their own: ranks, exports, probes of hosts, builders of ops.

Each file is started by its path (`python harness/workers/train_worker.py --run DIR`) or sent to a host as text. Only
the scripts in `launch/` import one. Started with `-P` or PYTHONSAFEPATH, a worker cannot import the files next to it.
"""
