# SPDX-License-Identifier: Apache-2.0
"""Questions to a tiny copy of a model, one module each: parts of this program, tried on the copy."""
