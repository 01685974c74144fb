# SPDX-License-Identifier: Apache-2.0
"""Messages: what the log catalogue says about a key, a gate says before the job; the exceptions have a reason each."""

from __future__ import annotations

from tests.support.unforeseen_messages import find_unforeseen, read_listed


def test_each_message_about_a_key_is_foreseen_by_a_gate_or_listed() -> None:
    """`python -m tests.support.unforeseen_messages` prints the rows."""
    found = {key: ",".join(sorted(ids)) for key, ids in find_unforeseen().items()}
    assert found == {key: causes for key, (causes, _) in read_listed().items()}
    assert all(len(reason) > 15 for _, reason in read_listed().values())


def test_a_message_of_a_gate_is_none_of_them() -> None:
    """These keys stand in changes of messages, and gates read them."""
    assert not {"zero_quantized_weights", "stage3_prefetch_bucket_size", "reduce_scatter"} & find_unforeseen().keys()
