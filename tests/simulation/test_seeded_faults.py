# SPDX-License-Identifier: Apache-2.0
"""Each seeded fault changes the functions that it names, and nothing is left of it afterwards."""

from __future__ import annotations

import dis
import inspect
import re
from pathlib import Path
from types import CodeType

import pytest

from tests.simulation.seeded_faults import FAULTS, SeededFault
from tests.support.code_edits import CodeEdit, EditError, apply_edits

pytestmark = pytest.mark.training
"""The functions are those of the installed DeepSpeed, which needs torch; no engine is built."""

WAYS = {"zero1", "zero2", "zero3", "zero3_cpu", "zero3_nvme", "zero3_nvme_params"}


def _instructions(code: CodeType) -> list[tuple[str, str]]:
    """The operations of a function and of those in it, without their places."""
    own = [(i.opname, "" if isinstance(i.argval, CodeType) else i.argrepr) for i in dis.get_instructions(code)]
    return own + [line for c in code.co_consts if isinstance(c, CodeType) for line in _instructions(c)]


def _names(code: CodeType) -> list[tuple[object, ...]]:
    """Everything that the code of a function and of those in it refers to, and its flags."""
    own = (code.co_qualname, code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars, code.co_flags)
    return [own, *(names for c in code.co_consts if isinstance(c, CodeType) for names in _names(c))]


def _unedited(edit: CodeEdit) -> CodeType:
    """The function as the edit compiles it, but for a space at the end of a line or an expression."""
    head, line_end = edit.old.rstrip("\n"), "\n" if edit.old.endswith("\n") else ""
    return CodeEdit(edit.target, edit.old, f"{head} {line_end}").edited_code()


def test_faults_have_names_and_ways_of_their_own() -> None:
    assert len(FAULTS) == len({fault.name for fault in FAULTS}) == 33
    assert len({(e.target, e.old) for fault in FAULTS for e in fault.edits}) == 35
    assert {fault.expected for fault in FAULTS} == {"race", "device"}
    assert set().union(*(fault.ways for fault in FAULTS)) == WAYS


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_changes_its_functions_until_it_is_left(fault: SeededFault) -> None:
    functions = [edit.function() for edit in fault.edits]
    codes = [function.__code__ for function in functions]
    sources = [inspect.getsource(function) for function in functions]
    with fault.inject():
        for edit, function, code in zip(fault.edits, functions, codes, strict=True):
            assert _instructions(function.__code__) != _instructions(_unedited(edit))
            assert function.__code__.co_firstlineno == code.co_firstlineno
        assert [inspect.getsource(function) for function in functions] == sources
    assert all(function.__code__ is code for function, code in zip(functions, codes, strict=True))


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_an_edit_of_white_space_changes_nothing(fault: SeededFault) -> None:
    """So a fault changes nothing but its own text: private names, flags and `__class__` are as before."""
    for edit in fault.edits:
        assert _names(_unedited(edit)) == _names(edit.function().__code__)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_description_has_the_line_that_a_fault_changes(fault: SeededFault) -> None:
    for edit in fault.edits:
        function = edit.function()
        file = Path(function.__code__.co_filename)
        lines, first_line = inspect.getsourcelines(function)
        line = first_line + "".join(lines).split(edit.old)[0].count("\n")
        if "deepspeed" in edit.target and len(fault.edits) == 1:
            assert re.search(rf"\b{file.name}:{line}\b", fault.description)
        else:
            assert function.__name__ in fault.description or "method" in fault.description


def test_a_fault_is_gone_after_an_error() -> None:
    fault = FAULTS[0]
    function = fault.edits[0].function()
    code = function.__code__
    with pytest.raises(ZeroDivisionError), fault.inject():
        raise ZeroDivisionError
    assert function.__code__ is code
    with fault.inject():
        assert function.__code__ is not code


@pytest.mark.parametrize(
    ("target", "old", "message"),
    [
        ("harness.runtime.micro_batch:MicroBatch.to_model_inputs", "there_is_no_such_text", "0 times"),
        ("harness.runtime.micro_batch:MicroBatch.to_model_inputs", "inputs", "times, not once"),
        ("harness.runtime.micro_batch:MicroBatch.to_nothing", "inputs", "has no `to_nothing`"),
        ("harness.runtime.micro_batch:StepBatch", "inputs", "is not the function of that name"),
    ],
)
def test_an_edit_that_does_not_fit_is_refused_and_changes_nothing(target: str, old: str, message: str) -> None:
    good = FAULTS[0].edits[0]
    code = good.function().__code__
    with pytest.raises(EditError, match=message), apply_edits(good, CodeEdit(target, old, "pass")):
        pytest.fail("an edit that does not fit was applied")
    assert good.function().__code__ is code


def test_a_function_is_edited_by_one_fault_at_a_time() -> None:
    """Both would be edits of the installed source: the second would undo the first."""
    fault = next(f for f in FAULTS if f.name == "pinned-batch-cleared-in-flight")
    other = next(f for f in FAULTS if f.name == "inputs-left-on-host")
    with fault.inject(), pytest.raises(EditError, match="edited already"), other.inject():
        pytest.fail("two edits of one function")
    with other.inject():
        pass


def test_private_names_and_references_from_elsewhere_are_edited() -> None:
    """`from partition_parameters import free_param` of another module is the same function."""
    from deepspeed.runtime.zero import partition_parameters

    fault = next(f for f in FAULTS if f.name == "freed-weights-not-recorded")
    function = fault.edits[0].function()
    with fault.inject():
        assert "record_stream" not in function.__code__.co_names
    assert "record_stream" in function.__code__.co_names
    assert function.__globals__ is vars(partition_parameters)
    private = next(f for f in FAULTS if f.name == "gradient-copied-before-computed").edits[0]
    assert "_DeepSpeedZeroOptimizer_Stage3__add_grad_to_ipg_bucket" not in private.edited_code().co_names
    assert "wait_stream" not in private.edited_code().co_names
