# SPDX-License-Identifier: Apache-2.0
"""The cases of public failure logs, and the grader of what `harness explain --log` answers to them."""
