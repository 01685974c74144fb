# SPDX-License-Identifier: Apache-2.0
"""Evidence besides a failure's own message: its phase, what was being allocated, who is missing, how the log ends."""
