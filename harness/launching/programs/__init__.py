# SPDX-License-Identifier: Apache-2.0
"""Programs of our own that run as child processes: rehearsals, trials, benchmarks, previews."""
