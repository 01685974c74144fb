# SPDX-License-Identifier: Apache-2.0
"""The conformance suite: what the gates say about a configuration against what the real DeepSpeed does with it."""
