# SPDX-License-Identifier: Apache-2.0
"""The user's input: a file with places, a checked run spec, a cluster."""
