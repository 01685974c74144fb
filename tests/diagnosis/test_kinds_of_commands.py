# SPDX-License-Identifier: Apache-2.0
"""Command lines and shell scripts that arrive otherwise than they were meant: split, empty or broken values. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

ARGPARSE = ("/usr/lib/python3.11/argparse.py", "exit", "_sys.exit(status)")
PDSH = "[2031-01-01 10:00:00,000] [INFO] [runner.py:500:main] cmd = pdsh -S -w odd-0,odd-1 cd /; python -u -m"
SPLIT = "a value was split at its blanks"


@pytest.mark.parametrize(
    ("line", "title", "change"),
    [
        ("odd.py: error: unrecognized arguments: bird that sings", f"{SPLIT}", "not behind `=`"),
        ("odd.py: error: unrecognized arguments: bird", "no option of `odd.py` takes `bird`", "directly before"),
        ("odd.py: error: unrecognized arguments: True", "switch without a value", "remove `True`"),
        ("odd.py: error: unrecognized arguments: # odd step", "a blank or a comment", "remove every blank"),
        ("odd.py: error: unrecognized arguments:  ", "a blank or a comment", "remove every blank"),
        ("odd.py: error: unrecognized arguments: \u2013odd 3", "`\u2013odd 3` begins with a long dash", "by hand"),
        ("odd.py: error: unrecognized arguments: = 3", "blanks stand around the `=`", "without a blank"),
        ("odd.py: error: unrecognized arguments: --odd 3", "does not know `--odd 3`", "spelling"),
        ("odd.py: error: argument --odd: invalid int value: ''", "`--odd` of `odd.py` has no value", "--odd=VALUE"),
        ("odd.py: error: argument --odd: expected one argument", "`--odd` of `odd.py` has no value", "--odd=VALUE"),
        ("odd.py: error: argument --odd: invalid int value: '1.5'", "refuses its command line: argument", "type"),
        ("odd.py: error: ambiguous option: --odd could match --odds, --oddly", "refuses its command", "full name"),
        ("Error: Got unexpected extra argument (bird)", "does not take its command line", "quotes"),
        ("ERROR: Could not consume arg: bird", "does not take its command line", "quotes"),
        (f"{PDSH} deepspeed.launcher.launch --node_rank=%n --master_addr= --master_port=1 o.py", "no address", "pass"),
        ("[INFO] [runner.py:417:main] Using IP address of  for node odd-0", "first host odd-0", "hostname -I"),
        ("$ torchrun --nnodes=2 --node_rank= --master_port=1 odd.py", "`--node_rank=` without a value", "set it"),
        ("odd.sh: line 3: ODD_ADDR: unbound variable", "variable `ODD_ADDR`, which is not set", "${ODD_ADDR:-VALUE}"),
        ("odd.sh: line 3: [: -gt: unary operator expected", "lacks a value", "${NAME:-0}"),
        ("odd.sh: 8: Bad substitution", "`sh` reads a script that is written for bash", "bash SCRIPT"),
        ("odd.sh: 8: source: not found", "`sh` reads a script that is written for bash", "bash SCRIPT"),
    ],
)
def test_a_command_that_arrives_otherwise(line, title, change):
    diagnosis = diagnose_text(f"usage: odd.py [-h] [--key KEY]\n{line}\n")
    assert diagnosis.cause in ("LG065", "LG095")
    assert (diagnosis.confidence == "certain") is ("does not know" in title)
    assert title in diagnosis.title
    assert change in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"


def test_a_job_that_trains_was_started_with_what_it_needs():
    log = (
        f"{PDSH} deepspeed.launcher.launch --master_addr= --master_port=1 o.py\nodd-0: {{'loss': 2.5, 'epoch': 0.1}}\n"
    )
    assert diagnose_text(log).state != "failed"


@pytest.mark.parametrize(
    ("frames", "error", "cause", "title"),
    [
        ([("/job/odd.py", "main", "add_option('--odd')")], "argparse.ArgumentError: argument --odd: conflicting "
         "option string: --odd", "LG065", "two places of the program define the option --odd"),
        ([("/job/odd.py", "main", "p.parse_args()"), ARGPARSE], "SystemExit: 2", "LG065", "its own message"),
        ([("/job/odd.py", "main", "join(args.odd, 'x')"), ("/usr/lib/python3.11/posixpath.py", "join", "os.fspath(a)")],
         "TypeError: expected str, bytes or os.PathLike object, not NoneType", "LG065", "`join(args.odd, 'x')`"),
        ([("/job/odd.py", "main", "open(odd)")], "FileNotFoundError: [Errno 2] No such file or directory: ''",
         "LG291", "a path is empty"),
        ([("/job/odd.py", "main", "int(os.environ['ODD'])")], "ValueError: invalid literal for int() with base 10: ''",
         "LG291", "a number is empty"),
        ([("huggingface_hub/odd.py", "check", "raise")], "huggingface_hub.errors.HFValidationError: Repo id must "
         "be in the form 'repo_name' or 'namespace/repo_name': ''. Use `repo_type` argument if needed.", "LG041",
         "the name of the model, tokenizer or dataset is empty"),
        ([("huggingface_hub/odd.py", "check", "raise"), ("/job/odd.py", "main", "split(names)")], "HFValidationError: "
         "Repo id must use alphanumeric chars, max length is 96: ['a', 'cat'].", "LG041", "does not exist"),
    ],
)  # fmt: skip
def test_a_value_that_is_empty_or_given_twice(frames, error, cause, title):
    diagnosis = diagnose_text(traceback_text(frames, error))
    assert (diagnosis.cause, title in diagnosis.title) == (cause, True), diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


def test_words_that_the_trainers_parser_lists_were_split_and_options_were_not():
    words = "ValueError: Some specified arguments are not used by the HfArgumentParser: ['bird', 'that', 'sings']"
    assert SPLIT in diagnose_text(traceback_text([("/job/odd.py", "main", "parse()")], words)).title
    options = words.replace("'bird'", "'--bird'")
    assert SPLIT not in diagnose_text(traceback_text([("/job/odd.py", "main", "parse()")], options)).title


@pytest.mark.parametrize(
    ("line", "cause", "title", "change"),
    [
        ("/usr/bin/python3: can't open file '/job/--odd': [Errno 2] No such file or directory", "LG054",
         "took the option `--odd` for the script", "put the script's name"),
        ("odd-1: python: can't open file '/job/odd.py': [Errno 2] No such file or directory", "LG054",
         "does not find the script `/job/odd.py`", "every host"),
        ("odd-1: bash: line 1: cd: /job/odd: No such file or directory", "LG054", "no folder `/job/odd`", "every host"),
        ("/usr/bin/env: 'bash\\r': No such file or directory", "LG095", "line ends of Windows", "sed -i"),
        ("odd.py: error: argument --odd: invalid float value: '1e-5\\r'", "LG095", "line ends of Windows", "sed -i"),
        ("python: Error while finding module specification for 'odd.py' (ModuleNotFoundError: x)", "LG065",
         "was given a file, `odd.py`", "leave `-m` out"),
        ("python: No module named odd.__main__; 'odd' is a package and cannot be directly executed", "LG065",
         "`odd`, which is a package", "-m odd.MODULE"),
        ("ERROR: Package 'oddlib' requires a different Python: 3.6.9 not in '>=3.8'", "LG228",
         "`oddlib` needs Python >=3.8, and this environment has 3.6.9", "conda create"),
        ("ERROR: Ignored the following versions that require a different python version: 2 Requires-Python >=3.10\n"
         "ERROR: No matching distribution found for oddlib==2", "LG228", "need another Python (>=3.10", "conda create"),
        ("ERROR: oddlib-1-cp310-cp310-linux_x86_64.whl is not a supported wheel on this platform.", "LG302",
         "`oddlib-1-cp310-cp310-linux_x86_64.whl` is for another", "take the wheel"),
        ("CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.", "LG064",
         "`conda activate` does not work", "source"),
    ],
)  # fmt: skip
def test_a_start_that_never_reaches_the_script(line, cause, title, change):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, title in diagnosis.title, change in diagnosis.change) == (cause, True, True), diagnosis
    assert decide_action(diagnosis).action == "change and retry"


def test_a_variable_of_the_environment_that_nobody_set():
    frames = [("/job/odd.py", "main", "n = os.environ['ODD_PORT']"),
              ("/usr/lib/python3.11/os.py", "__getitem__", "raise KeyError(key) from None")]  # fmt: skip
    diagnosis = diagnose_text(traceback_text(frames, "KeyError: 'ODD_PORT'"))
    assert (diagnosis.cause, "`ODD_PORT` is not set" in diagnosis.title) == ("LG291", True)
    other = diagnose_text(traceback_text([("/job/odd.py", "main", "n = table['ODD_PORT']")], "KeyError: 'ODD_PORT'"))
    assert "is not set" not in other.title
