# SPDX-License-Identifier: Apache-2.0
"""Every release of DeepSpeed against one plain torch process: `python -m tests.releases`."""
