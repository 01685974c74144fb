# SPDX-License-Identifier: Apache-2.0
"""Plans of any tensor x pipeline x context x expert x data degrees, whether or not this harness can launch them."""
