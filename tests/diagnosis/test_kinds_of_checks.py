# SPDX-License-Identifier: Apache-2.0
"""Bare assertions, whose line alone says what is missing or wrong. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text


@pytest.mark.parametrize(
    ("code", "cause", "title", "change"),
    [
        ("args.odd_file is not None", "LG291", "setting `odd_file` is missing: `build_odd`", "`--odd_file`"),
        ("cfg.model.odd_path, cfg", "LG291", "setting `odd_path` is missing", "add `odd_path`"),
        ("self.config['odd_id'] is not None", "LG291", "setting `odd_id` is missing", "add `odd_id`"),
        ("len(args.odd_files) > 0", "LG291", "setting `odd_files` is missing", "add `odd_files`"),
        ("args.odd_kind in ('round', 'flat')", "LG291", "value of `odd_kind`", "set `odd_kind`"),
        ("args.odd_len <= args.odd_most", "LG291", "value of `odd_len`", "so that `assert args.odd_len"),
        ("not (args.odd_half and args.odd_whole)", "LG291", "`odd_half` and `odd_whole` exclude", "leave one"),
        ("args.odd is None or args.even is None", "LG291", "`odd` and `even` exclude", "leave one"),
        ("not args.odd_cache", "LG291", "`odd_cache` is set", "remove `odd_cache`"),
        ("args.odd_cache is None", "LG291", "`odd_cache` is set", "remove `odd_cache`"),
        ("os.path.isfile(odd)", "LG054", "file or folder", "check the path"),
        ("torch.cuda.is_available()", "LG012", "asks for a GPU", "pass the GPUs on"),
        ("'LOCAL_RANK' in os.environ", "LG291", "no launcher", "torchrun"),
        ("args.local_rank >= 0", "LG291", "no launcher", "torchrun"),
        ("oddlib.__version__ == '1.2.3'", "LG227", "another release of `oddlib`", "release of `oddlib`"),
        ("'odd_ids' in record", "LG044", "`record` has no `odd_ids`", "print(record.keys())"),
        ("len(odd_rows) > 0", "LG044", "`odd_rows` is empty", "fill `odd_rows`"),
        ("odd.shape == even.shape", "LG082", "another size", "print the two sizes"),
        ("isinstance(odd, OddReader)", "LG227", "`odd` is no `OddReader`", "releases"),
        ("odd_reader is not None", "LG291", "`odd_reader` is None", "set what should have made"),
        ("odd_ranks == 8", "LG291", "a check of the program failed in `build_odd`: `assert odd_ranks", "settings"),
    ],
)
def test_a_bare_assertion_is_told_by_its_line(code, cause, title, change):
    frame = ("/job/oddlm/odd.py", "build_odd", f"assert {code}")
    diagnosis = diagnose_text(traceback_text([("/job/run.py", "main", "build_odd(args)"), frame], "AssertionError"))
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert title in diagnosis.title
    assert change in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"


def test_a_message_outranks_its_line_and_a_line_of_a_package_is_no_program():
    frame = ("/job/odd.py", "build_odd", "assert args.odd_file is not None, 'x'")
    assert "is missing" not in diagnose_text(traceback_text([frame], "AssertionError: rows lack labels")).title
    own = diagnose_text(traceback_text([("oddlib/odd.py", "read", "assert depth == 3")], "AssertionError"))
    assert "check of the program" not in own.title
