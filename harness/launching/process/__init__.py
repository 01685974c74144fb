# SPDX-License-Identifier: Apache-2.0
"""Child processes, signals and shared memory of this host."""
