# SPDX-License-Identifier: Apache-2.0
"""The rows of a metrics file while another process writes it. Needs nothing; milliseconds."""

from harness.launching.supervise.log_streams import JsonlTail


def test_tail_gives_whole_lines_once(tmp_path):
    tail = JsonlTail(tmp_path / "m.jsonl")
    assert tail.pop_rows() == []
    with (tmp_path / "m.jsonl").open("w") as file:
        file.write('{"type": "run"}\nnot json\n{"type": "st')
        file.flush()
        assert tail.pop_rows() == [{"type": "run"}]
        file.write('ep"}\n')
    assert tail.pop_rows() == [{"type": "step"}]
    assert tail.pop_rows() == []
