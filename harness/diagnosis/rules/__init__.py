# SPDX-License-Identifier: Apache-2.0
"""The catalogue as rules: which of them a line matches, and which releases print a message."""
