# SPDX-License-Identifier: Apache-2.0
"""Questions to a tiny copy of a model, by what they look at: parts of this program, tried on the copy."""
