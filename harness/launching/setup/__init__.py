# SPDX-License-Identifier: Apache-2.0
"""From a checked run to a launch plan: back end, environment, run directory, resume."""
