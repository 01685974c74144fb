# SPDX-License-Identifier: Apache-2.0
"""Child processes of commands: rehearsals, trials, benchmarks, previews, exports."""
