# SPDX-License-Identifier: Apache-2.0
"""The launch of a checked run: hosts, setup, compiled ops, supervision of the ranks, and the verdict."""
