# SPDX-License-Identifier: Apache-2.0
"""The restart policy: failures after which a run starts again, and those that end it. Needs nothing; milliseconds."""

from harness.launching.supervise.restart_policy import Attempt, decide_restart
from harness.verdicts import Verdict


def attempt(number, step, saved, start=0, cause="killed by SIGKILL"):
    return Attempt(number, 0.0, 1.0, None, start, saved, step, "failed", 137, cause)


def test_delays_double_while_nothing_is_gained_and_then_it_is_given_up():
    killed = Verdict("failed", 137, "killed by SIGKILL", step=5)
    first, idle, idler = attempt(1, 5, 4), attempt(2, 5, 4, 4), attempt(3, 4, 4, 4)
    assert decide_restart([first], killed, 9, 5.0).delay == 5.0
    assert decide_restart([first, idle], killed, 9, 5.0).delay == 5.0
    assert decide_restart([first, idle, idler], killed, 9, 5.0).delay == 10.0
    end = decide_restart([first, idle, idler, attempt(4, 5, 4, 4)], killed, 9, 5.0)
    assert end.delay is None
    assert "3 attempts in a row made no progress beyond step 5" in end.reason
    assert decide_restart([first, idle, idler, attempt(4, 8, 8, 4)], killed, 9, 5.0).delay == 5.0
    assert "restart 1 of 1" in decide_restart([first, idle], killed, 1, 5.0).reason
    assert decide_restart([first], Verdict("stopped", 143), 9, 5.0).delay is None
