# SPDX-License-Identifier: Apache-2.0
"""The names of signals in the file `stop`, written and read. Needs nothing; milliseconds."""

import signal

import pytest

from harness.launching.process.signals import parse_signal_name, signal_name


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_the_file_stop_names_the_signal(signum):
    assert parse_signal_name(f"{signal_name(signum)}\n") == signum


@pytest.mark.parametrize("text", ["", "\n", "please stop", "sigterm"])
def test_other_text_names_none(text):
    assert parse_signal_name(text) is None
