# SPDX-License-Identifier: Apache-2.0
"""From a file to findings: loading, gates, fixes, and the selection of rules."""
