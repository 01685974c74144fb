# SPDX-License-Identifier: Apache-2.0
"""What a model's weights are on a rank: shards, trained parts, number formats, optimizer states, FLOPs."""
