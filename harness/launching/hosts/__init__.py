# SPDX-License-Identifier: Apache-2.0
"""This host and the others of a hostfile: ssh, the survey before a launch."""
