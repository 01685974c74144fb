# SPDX-License-Identifier: Apache-2.0
"""Seconds of a step: work, traffic, rates of devices and links, measured or from data sheets; cost and goodput."""
