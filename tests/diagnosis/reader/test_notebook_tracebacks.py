# SPDX-License-Identifier: Apache-2.0
"""Tracebacks as IPython prints them: the same frames as Python's own. Needs nothing; a second."""

from __future__ import annotations

import pytest

from tests.support.tracebacks import SITE, diagnose_text

_NEW = f"""{"-" * 75}
{{name}}                                 Traceback (most recent call last)
Cell In[12], line 3
      1 import deepspeed
      2 engine = build()
----> 3 engine.step()

File {SITE}/deepspeed/runtime/engine.py:2801, in DeepSpeedEngine.step(self, lr_kwargs)
   2799     # the last micro-batch
   2800     if self.is_gradient_accumulation_boundary():
-> 2801         self._take_model_step(lr_kwargs)

File {SITE}/{{file}}:41, in {{owner}}{{function}}(self)
     39
     40 def unused():
---> 41     {{code}}
     42     return None

"""
_OLD = f"""{"-" * 75}
{{name}}                            Traceback (most recent call last)
<ipython-input-9-3435b262f1ae> in <module>
----> 1 engine.step()

~/env{SITE}/deepspeed/runtime/engine.py in step(self, lr_kwargs)
   2800     if self.is_gradient_accumulation_boundary():
-> 2801         self._take_model_step(lr_kwargs)
   2802

~/env{SITE}/{{file}} in {{function}}(self)
     40
---> 41     {{code}}

"""


def _write(form, error, file, function, code, owner=""):
    text = form.format(name=error.partition(":")[0], file=file, function=function, code=code, owner=owner)
    return f"{text}{error}\n"


@pytest.mark.parametrize("form", [_NEW, _OLD])
def test_a_call_of_deepspeed_to_itself_is_seen_in_a_notebook(form):
    error = "AttributeError: 'DeepSpeedZeroOptimizer' object has no attribute 'oddity'"
    diagnosis = diagnose_text(_write(form, error, "deepspeed/runtime/zero/stage3.py", "reduce_all", "self.oddity(1)"))
    assert (diagnosis.cause, "reduce_all" in diagnosis.title) == ("LG149", True)


@pytest.mark.parametrize("form", [_NEW, _OLD])
def test_the_logits_are_seen_in_a_notebook(form):
    error = "OutOfMemoryError: CUDA out of memory. Tried to allocate 15.66 GiB. GPU 0 has a total capacity of 79.1 GiB"
    file = "transformers/loss/loss_utils.py"
    diagnosis = diagnose_text(_write(form, error, file, "ForCausalLMLoss", "logits = logits.float()"))
    assert (diagnosis.cause, diagnosis.confidence) == ("LG001", "certain")
    assert "logits" in diagnosis.allocation.text


@pytest.mark.parametrize("head", ["Input In [5], in <cell line: 2>()", "/home/u/ipykernel_8/3.py in <module>"])
def test_a_cell_is_the_place_of_its_call(head):
    rows = [head, "      1 import os", "----> 2 print(os.environ['ODD_NAME'])", "", "KeyError: 'ODD_NAME'"]
    diagnosis = diagnose_text("KeyError     Traceback (most recent call last)\n" + "\n".join(rows) + "\n")
    assert ":2 in <module>" in diagnosis.where
    assert "environment variable `ODD_NAME`" in diagnosis.title


def test_lines_of_a_cell_without_numbers_end_its_traceback():
    text = "Cell In[2], line 1\n----> 1 run()\n\nRuntimeError: odd words of nobody\nstep 1 loss: 2.0\n"
    assert diagnose_text(text).message == "RuntimeError: odd words of nobody"
