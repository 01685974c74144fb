# SPDX-License-Identifier: Apache-2.0
"""From a run that is allowed to ranks that run, and to how they ended."""
