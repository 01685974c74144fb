# SPDX-License-Identifier: Apache-2.0
"""Kinds of failures of files, builds and programs, each with siblings that no row names. Needs nothing; seconds."""

from __future__ import annotations

import re

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text


@pytest.mark.parametrize("name", ["config.json", "preprocessor_config.json", "vocab.txt"])
def test_a_folder_without_a_file_of_a_model_is_told_as_such(name):
    diagnosis = diagnose_text(f"FileNotFoundError: [Errno 2] No such file or directory: '/w/odd/{name}'\n")
    assert diagnosis.cause == "LG054"
    assert f"lacks `{name}` (/w/odd)" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


def test_a_deepspeed_json_or_another_file_is_no_part_of_a_model():
    for name in ("ds_config.json", "odd.csv"):
        title = diagnose_text(f"FileNotFoundError: [Errno 2] No such file or directory: '/w/{name}'\n").title
        assert f"`/w/{name}`" in title


@pytest.mark.parametrize("module", ["configuration_utils", "tokenization_utils_base", "processing_utils"])
def test_a_json_of_a_model_is_no_data(module):
    frames = [
        (f"transformers/{module}.py", "_load", "json.load(f)"),
        ("/usr/lib/python3.10/json/decoder.py", "decode", "x"),
    ]
    diagnosis = diagnose_text(
        traceback_text(frames, "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)")
    )
    assert (diagnosis.cause, "model's folder" in diagnosis.title) == ("LG033", True)


@pytest.mark.parametrize(
    ("error", "cause", "action"),
    [
        ("OSError: [Errno 37] No locks available", "LG051", "change and retry"),
        (
            "BlockingIOError: [Errno 11] Unable to open file (unable to lock file, errno = 11)",
            "LG051",
            "change and retry",
        ),
        ("OSError: [Errno 16] Device or resource busy: '.nfs00000000a1'", "LG052", "retry"),
        ("OSError: [Errno 116] Stale file handle: '/w/out'", "LG052", "retry"),
    ],
)
def test_a_shared_disk_that_refuses(error, cause, action):
    diagnosis = diagnose_text(f"{error}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == (cause, action)


@pytest.mark.parametrize("name", ["torch", "oddbuild"])
def test_a_build_that_lacks_a_package_is_no_rank(name):
    frames = [
        ("/w/odd/setup.py", "<module>", "from tools import build"),
        ("/w/odd/tools.py", "<module>", f"import {name}"),
    ]
    diagnosis = diagnose_text(traceback_text(frames, f"ModuleNotFoundError: No module named '{name}'"))
    assert (diagnosis.cause, f"needs `{name}`" in diagnosis.title) == ("LG302", True)


@pytest.mark.parametrize("name", ["is_odd", "odd_scaler"])
def test_a_copy_of_a_trainer_belongs_to_another_release(name):
    frames = [("/w/prog/trainer.py", "_loop", f"if self.{name}:")]
    error = f"AttributeError: 'OddTrainer' object has no attribute '{name}'"
    diagnosis = diagnose_text(traceback_text(frames, error))
    assert (diagnosis.cause, "Trainer of another release" in diagnosis.title) == ("LG227", True)


def test_an_error_of_cuda_below_a_cut_traceback_is_the_first_failure():
    frames = traceback_text([("transformers/training_args.py", "_setup", "self.x = y(")], "", rank=1)
    diagnosis = diagnose_text(frames.removesuffix("[rank1]: \n") + "CUDA error: uncorrectable ECC error encountered\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG016", "retry elsewhere")


def test_the_outer_of_two_exceptions_says_which_path_was_wrong():
    inner = traceback_text([("/usr/lib/python3.10/base64.py", "b64decode", "x")], "binascii.Error: Incorrect padding")
    error = (
        "ValueError: Expected a string path to an existing deepspeed config, or a dictionary. Received: ./odd/z.json"
    )
    outer = traceback_text([("transformers/training_args.py", "__post_init__", "y")], error)
    diagnosis = diagnose_text(
        f"{inner}\nDuring handling of the above exception, another exception occurred:\n\n{outer}"
    )
    assert (diagnosis.cause, diagnosis.title.endswith("given: ./odd/z.json")) == ("SP001", True)


@pytest.mark.parametrize(
    ("values", "action"),
    [((3.0, 2.5, 2.4, 2.3, 2.2, 2.1, 7.0, 7.1, 7.2), "change and retry"), ((3.0, 2.9, 2.8, 2.7, 2.6, 2.5), None)],
)
def test_a_loss_that_diverged_has_a_decision(values, action):
    decision = decide_action(diagnose_text("".join(f"step {i} loss: {value}\n" for i, value in enumerate(values))))
    assert (decision.action if decision else None) == action


def test_iterations_that_became_slower_are_a_matter_of_a_host():
    times = (5010, 5012, 5011, 5013, 6800, 6810, 6805)
    rows = (
        f" iteration {i} | elapsed time per iteration (ms): {time}.1 | lm loss: 2.{i}" for i, time in enumerate(times)
    )
    assert decide_action(diagnose_text("\n".join(rows) + "\n")).action == "retry elsewhere"


@pytest.mark.parametrize(
    ("sub", "base"), [("deepspeed", "torch"), ("oddtrainer", "transformers"), ("peft", "accelerate")]
)
def test_a_method_that_another_package_overrides_names_both(sub, base):
    frames = [
        (f"{base}/odd/api.py", "run", "result = f(*args)"),
        (f"{sub}/agent.py", "_invoke", "self._start(1)"),
        (f"{base}/odd/api.py", "_start", "self._set_address("),
    ]
    error = "TypeError: _set_address() takes 3 positional arguments but 4 were given"
    diagnosis = diagnose_text(traceback_text(frames, error))
    assert diagnosis.cause == "LG227"
    assert f"`{base}` calls a method of its own class, which `{sub}` overrides" in diagnosis.title
    assert f"a newer `{sub}`" in diagnosis.change


@pytest.mark.parametrize("frames", [(), (("torch/_utils.py", "_flatten_dense_tensors", "return flatten(tensors)"),)])
def test_an_empty_group_that_is_flattened_is_no_batch(frames):
    error = "RuntimeError: torch.cat(): expected a non-empty list of Tensors"
    diagnosis = diagnose_text(traceback_text(frames, error) if frames else f"{error}\n")
    assert (diagnosis.cause, decide_action(diagnosis).action) == ("LG147", "change and retry")


@pytest.mark.parametrize("hook", ["DeepSpeedEngine._make_hook", "PipelineEngine._odd"])
def test_a_hook_of_an_engine_that_a_worker_should_copy(hook):
    diagnosis = diagnose_text(f"AttributeError: Can't pickle local object '{hook}.<locals>.odd'\n")
    assert (diagnosis.cause, diagnosis.confidence, hook in diagnosis.title) == ("LG216", "likely", True)


@pytest.mark.parametrize(
    "why", ["Could not resolve hostname node-7.odd", "connect to host node-7 port 22: Connection refused"]
)
def test_the_reason_that_ssh_gives_is_the_launchers(why):
    error = "RuntimeError: Using hostfile at /w/hosts but host=node-7 was not reachable via ssh. If you are running"
    diagnosis = diagnose_text(f"{error}\nssh: {why}: no more\n" if "resolve" in why else f"{error}\nssh: {why}\n")
    assert (diagnosis.cause, diagnosis.confidence, f"`{why}`" in diagnosis.title) == ("LG060", "likely", True)


@pytest.mark.parametrize("line", ["*** An error occurred in MPI_Init_thread", "[a:1] PMIX ERROR: UNREACHABLE"])
def test_mpi_that_fails_without_its_launcher_has_a_cause(line):
    text = f"Not using the DeepSpeed or dist launchers, attempting to detect MPI environment...\n{line}\n"
    diagnosis = diagnose_text(text)
    assert (diagnosis.cause, "no launcher started" in diagnosis.title) == ("LG291", True)


@pytest.mark.parametrize(
    ("error", "package"),
    [
        (
            "ImportError: cannot import name 'Odd' from 'oddlib.sub.part' (/x/site-packages/oddlib/sub/part.py)",
            "oddlib",
        ),
        ("ImportError: cannot import name '_odd_gather' from 'torch.distributed' (/x/__init__.py)", "torch"),
        ("AttributeError: module 'datasets.odd' has no attribute 'Odd'", "datasets"),
    ],
)
def test_an_import_that_fails_names_both_packages(error, package):
    diagnosis = diagnose_text(
        traceback_text([("/w/run.py", "<module>", "import a"), ("oddcaller/x.py", "<module>", "i")], error)
    )
    assert "`oddcaller`" in diagnosis.title + diagnosis.change
    assert re.search(rf"\b{package}\b(?!\.)", diagnosis.change)
    assert "last in the traceback" not in diagnosis.title + diagnosis.change


@pytest.mark.parametrize(
    "error",
    [
        "ValueError: `--odd_best` requires the save and the odd strategy to match",
        "AssertionError: odd_size must be smaller than the window",
        "odd.core.OddConfigError: unknown kind of rope: odd",
    ],
)
def test_a_check_that_says_what_it_wants_is_a_change(error):
    diagnosis = diagnose_text(f"{error}\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG291", "likely")
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize("error", ["'dict' object has no attribute 'to_odd'", "'str' object has no attribute 'odd_id'"])
def test_a_setting_of_another_form_is_told_of_the_package_that_reads_it(error):
    frames = [("/w/run.py", "<module>", "go()"), ("oddlib/x.py", "read", "c.to_odd()")]
    diagnosis = diagnose_text(traceback_text(frames, f"AttributeError: {error}"))
    assert (diagnosis.cause, "another form" in diagnosis.title) == ("LG227", True)


def test_a_dimension_that_a_tensor_does_not_have_is_no_record_of_the_data():
    frames = [
        ("/w/run.py", "loss", "out = model(x)"),
        ("torch/nn/modules/module.py", "_call_impl", "return forward_call(x)"),
    ]
    diagnosis = diagnose_text(traceback_text(frames, "IndexError: tuple index out of range"))
    assert (diagnosis.cause, "dimension" in diagnosis.title) == ("LG082", True)


@pytest.mark.parametrize("option", ["--num_gpu 2", "--odd", "--deepspeed_config x.json"])
def test_an_option_that_a_program_does_not_know_is_named(option):
    diagnosis = diagnose_text(f"usage: odd [-h]\nodd.py: error: unrecognized arguments: {option}\n")
    assert (diagnosis.cause, f"`odd.py` does not know `{option}`" in diagnosis.title) == ("LG065", True)
    local = diagnose_text("usage: odd [-h]\nodd.py: error: unrecognized arguments: --local-rank=0\n")
    assert "--local_rank" in local.change


@pytest.mark.parametrize("what", ["argument --nnodes: invalid value: ''", "unrecognized arguments: --odd 1"])
def test_a_launcher_that_a_program_starts_wrongly_names_the_program(what):
    frames = [("oddtrainer/cli.py", "main", "process = run("), ("/usr/lib/python3.10/subprocess.py", "run", "raise")]
    error = "subprocess.CalledProcessError: Command '['torchrun', '--nnodes', '']' returned non-zero exit status 2."
    diagnosis = diagnose_text(f"usage: torchrun [-h]\ntorchrun: error: {what}\n{traceback_text(frames, error)}")
    assert "`oddtrainer` started its launcher" in diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


def test_ranks_of_a_barrier_are_no_number():
    error = "RuntimeError: [Rank 2]: Ranks 0, 1, 3 failed to pass monitoredBarrier in 1800000 ms"
    assert diagnose_text(f"{error}\n").cause == "LG070"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        ("TypeError: unsupported operand type(s) for |: 'type' and 'NoneType'", "LG228"),
        ("AttributeError: module 'collections' has no attribute 'Mapping'", "LG228"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "LG001"),
        ("python: malloc.c:2379: sysmalloc: Assertion failed.", "LG018"),
        ("[1]  + 4711 killed     python train.py", "LG003"),
        ('a.h:4:2: error: #error "C++17 or later compatible compiler is required"', "LG156"),
        ("RuntimeError: NPU function error: HcclOdd(&id), error code is 7", "LG210"),
        ("ImportError: /x/flash_attn_2_cuda.so: version `GLIBC_2.32' not found (required by /x/a.so)", "LG223"),
    ],
)
def test_lines_that_other_causes_took(line, cause):
    diagnosis = diagnose_text(f"{line}\n")
    assert (diagnosis.cause, "flash-attn" in diagnosis.title) == (cause, False)


def test_a_hook_without_weights_and_a_list_of_files_are_told_by_their_frames():
    frames = [
        ("accelerate/accelerator.py", "save_state", "hook(x)"),
        ("/w/train.py", "save_model_hook", "weights.pop()"),
    ]
    assert diagnose_text(traceback_text(frames, "IndexError: pop from empty list")).cause == "LG120"
    frames = [("deepspeed/runtime/state_dict_factory.py", "check_ckpt_list", "assert len(x) > 0")]
    assert diagnose_text(traceback_text(frames, "AssertionError")).cause == "LG034"


def test_a_weight_of_4_bit_without_its_state_is_no_release_of_bitsandbytes():
    frames = [
        ("peft/tuners/lora/bnb.py", "forward", "x"),
        ("bitsandbytes/odd.py", "matmul", "assert quant_state is not None"),
    ]
    assert diagnose_text(traceback_text(frames, "AssertionError")).cause == "LG198"
    frames[1] = ("bitsandbytes/odd.py", "matmul", "assert odd is not None")
    other = diagnose_text(traceback_text(frames, "AssertionError"))
    assert (other.cause, "the calling package" in other.change) == ("LG223", True)
