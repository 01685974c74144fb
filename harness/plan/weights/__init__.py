# SPDX-License-Identifier: Apache-2.0
"""A model's weights on a rank: shards, trained parts, number formats, optimizer states, FLOPs."""
