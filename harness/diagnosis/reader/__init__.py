# SPDX-License-Identifier: Apache-2.0
"""Files of a job -> its lines -> the events in them, in bounded memory."""
