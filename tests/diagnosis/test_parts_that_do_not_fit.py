# SPDX-License-Identifier: Apache-2.0
"""Short quotes and tracebacks of releases, dtypes, files and processes that do not fit. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from harness.diagnosis.evidence import release_pair
from harness.hostinfo.installed_packages import Installation
from tests.support.tracebacks import diagnose_text, traceback_text

MAIN = ("/job/fit.py", "<module>", "main()")
ZERO = "deepspeed/runtime/zero"


def answer_of(text: str) -> tuple[str, str, str]:
    diagnosis = diagnose_text(text)
    decision = decide_action(diagnosis)
    assert decision is not None, diagnosis.title
    return diagnosis.cause, diagnosis.confidence, decision.action


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("AttributeError: 'PairSet' object has no attribute 'real_epoch'", "LG227"),
        ("AttributeError: 'OddConfig' object has no attribute 'layer_kinds'", "LG227"),
        ("AttributeError: 'DeepSpeedDataLoader' object has no attribute 'shards'", "LG227"),
        ("TypeError: __init__() got an unexpected keyword argument 'odd_batches'", "LG227"),
        ("ImportError: cannot import name 'odd_helper'", "LG089"),
        ("IndexError: pop from an empty deque", "LG101"),
        ("RuntimeError: 'weight' must be 2-D", "LG083"),
    ],
)
def test_a_quote_without_frames_leads_to_releases_and_settings(message, cause):
    assert answer_of(message) == (cause, "likely", "change and retry")


def test_a_cut_import_is_named_by_its_line_of_source():
    lines = "    from odd.kernels.api import launch, odd_helper, stop\nImportError: cannot import name 'odd_helper'\n"
    diagnosis = diagnose_text(lines)
    assert diagnosis.cause == "LG089"
    assert "`odd_helper` in `odd.kernels.api`" in diagnosis.title
    other = diagnose_text(lines.replace("launch, odd_helper,", "launch, odd_helpers,"))
    assert "odd.kernels.api" not in other.title


@pytest.mark.parametrize(
    "message",
    [
        "RuntimeError: Found dtype Float but expected BFloat16",
        "RuntimeError: mask dtype (float) must match query dtype (c10::BFloat16)",
        "RuntimeError: expected dtype float for `end` but got dtype c10::Half",
        "RuntimeError: Tensor for argument weight is of dtype Half, expected Float",
        "RuntimeError: Model and optimizer dtypes do not match: model torch.bfloat16, optimizer torch.float32",
        "ValueError: Type torch.bfloat16 is not supported with fp16 enabled",
    ],
)
def test_two_dtypes_in_a_message_ask_for_one(message):
    assert answer_of(message) == ("LG081", "likely", "change and retry")


def test_one_dtype_in_a_message_is_no_mixture():
    assert diagnose_text("RuntimeError: odd dtype float of the float buffer").cause == ""


@pytest.mark.parametrize("arch", ["Ampere", "Hopper"])
def test_an_attention_that_this_gpu_lacks_asks_for_another(arch):
    diagnosis = diagnose_text(f"RuntimeError: FlashAttention only supports {arch} GPUs or newer.")
    assert diagnosis.cause == "LG019"
    assert arch in diagnosis.title
    assert "attn_implementation: sdpa" in diagnosis.change
    assert "bf16" not in diagnosis.change


def test_a_kernel_without_a_dtype_does_not_advise_that_dtype():
    diagnosis = diagnose_text("RuntimeError: \"odd_cpu\" not implemented for 'BFloat16'")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG019", "likely")
    assert "use bf16" not in diagnosis.change
    assert "odd_cpu" in diagnosis.title


def test_a_missing_op_is_not_certain_and_says_where_its_error_is():
    line = "ImportError: /scratch/ext/async_io/async_io.so: cannot open shared object file: No such file or directory"
    frames = [MAIN, ("torch/utils/cpp_extension.py", "_import_module_from_library", "module = load(spec)")]
    for text in (line, traceback_text(frames, line)):
        diagnosis = diagnose_text(text)
        assert (diagnosis.cause, diagnosis.confidence) == ("LG025", "likely")
        assert "first error of its build" in diagnosis.change


def test_accelerate_that_reads_its_own_state_is_a_release():
    frames = [MAIN, ("accelerate/accelerator.py", "__init__", "plugins = AcceleratorState().deepspeed_plugins")]
    message = "ValueError: Please make sure to properly initialize your accelerator via `accelerator = Accelerator()`"
    text = traceback_text([*frames, ("accelerate/state.py", "__init__", "raise ValueError(")], message)
    assert answer_of(text) == ("LG186", "likely", "change and retry")
    assert diagnose_text(text).change.startswith("install accelerate 1.9")


def test_an_empty_weight_leads_to_an_engine_for_a_second_model():
    change = diagnose_text("RuntimeError: 'weight' must be 2-D").change
    assert "engine of its own" in change
    assert "ZeRO stage 2" in change


def test_nothing_trainable_names_the_targets_of_lora():
    message = "RuntimeError: element 0 of tensors does not require grad and does not have a grad_fn"
    assert "target_modules" in diagnose_text(message).change


def test_a_network_error_before_any_step_asks_for_the_interface():
    line = "torch.distributed.DistBackendError: NCCL error in: a.cpp:1333, remote process exited or there was a network error"
    assert answer_of(line) == ("LG073", "likely", "change and retry")
    steps = "".join(f"{{'loss': 2.1, 'step': {i}}}\n 9%|# | {i}/900 [00:09<01:00, 1.00it/s]\n" for i in range(8))
    assert answer_of(steps + line)[2] == "retry"


def test_a_file_that_another_rank_renamed():
    message = "FileNotFoundError: [Errno 2] No such file or directory: '/cache/tmp.odd.bin' -> '/cache/odd.bin'"
    text = traceback_text([MAIN, ("/job/get.py", "fetch", "move(part, whole)")], message)
    assert answer_of(text) == ("LG054", "likely", "change and retry")
    assert "another one renamed it first" in diagnose_text(text).title
    assert "renamed it first" not in diagnose_text(text.replace(" -> '/cache/odd.bin'", "")).title


def test_an_engine_that_a_program_builds_itself():
    own = ("/job/odd/engines.py", "__init__", "super().__init__(None, *args)")
    inner = [
        ("deepspeed/runtime/engine.py", "__init__", "self._check()"),
        ("deepspeed/runtime/engine.py", "_check", "x"),
    ]
    message = "AttributeError: 'NoneType' object has no attribute 'odd_name'"
    assert answer_of(traceback_text([MAIN, own, *inner], message)) == ("LG227", "likely", "change and retry")
    usual = ("deepspeed/__init__.py", "initialize", "engine = DeepSpeedEngine(args=args,")
    assert "builds DeepSpeed's engine" not in diagnose_text(traceback_text([MAIN, usual, *inner], message)).title


@pytest.mark.parametrize("check", ["len({t.device for t in parts}) == 1", "part.is_cuda"])
def test_a_check_of_zero_on_devices(check):
    text = traceback_text([MAIN, (f"{ZERO}/stage3.py", "odd_pack", f"assert {check}")], "AssertionError")
    assert answer_of(text) == ("LG081", "likely", "change and retry")
    other = traceback_text([MAIN, (f"{ZERO}/stage3.py", "odd_pack", "assert a.is_odd")], "AssertionError")
    assert diagnose_text(other).cause == "LG109"


def test_what_a_package_has_not_implemented():
    frames = [MAIN, ("deepspeed/runtime/pipe/engine.py", "_exec_odd", "raise NotImplementedError()")]
    assert answer_of(traceback_text(frames, "NotImplementedError")) == ("LG291", "likely", "change and retry")
    own = traceback_text([MAIN, ("/job/model.py", "odd", "raise NotImplementedError()")], "NotImplementedError")
    assert diagnose_text(own).cause == ""


def test_a_cpu_optimizer_that_crashes_before_the_first_step():
    start = "Adam Optimizer #0 is created with AVX512 arithmetic capability.\n"
    crash = "Segmentation fault (core dumped)\n"
    assert answer_of(start + crash) == ("LG160", "likely", "change and retry")
    assert diagnose_text(f"{start}{{'loss': 2.0}}\n{crash}").cause == "LG018"


def test_a_log_that_ends_in_the_build_of_an_op_names_its_folder():
    line = "Using /home/u/.cache/torch_extensions as PyTorch extensions root...\nTime to load odd op: 0.1 seconds\nOddManager:\n  count .... 4\n"
    assert any("remove the folders below TORCH_EXTENSIONS_DIR" in note for note in diagnose_text(line).notes)


def test_a_slot_without_quotes_is_one_of_the_hostfile():
    assert answer_of("No slot 3 specified on host odd7") == ("LG061", "certain", "change and retry")


def test_a_parameter_that_an_optimizer_does_not_take_is_named():
    message = "TypeError: Adam.__init__() got an unexpected keyword argument 'odd_mode'"
    frames = [MAIN, ("deepspeed/runtime/engine.py", "_configure_basic_optimizer", "o = Adam(**settings)")]
    diagnosis = diagnose_text(traceback_text(frames, message))
    assert diagnosis.cause == "OP005"
    assert "`odd_mode`" in diagnosis.change


@pytest.mark.parametrize(
    ("message", "cause", "words"),
    [
        ("AssertionError: Torch not compiled with CUDA enabled", "LG225", "install a torch with CUDA"),
        ("ValueError: Expected more than 1 value per channel when training, got input size [1, 8]", "LG082", "drop_last"),
        ("RuntimeError: The expanded size of the tensor (90) must match the existing size (80)", "LG082", "truncation"),
        ("RuntimeError: probability tensor contains either `inf`, `nan` or element < 0", "LG048", "in place of fp16"),
        ("RuntimeError: [3]: params[7] in this process with sizes [9] appears not to match sizes of the same param",
         "LG212", "same configuration"),
        ("ValueError: Target modules {'odd'} not found in the base model. Please check", "LG196", "all-linear"),
        ("OSError: You are trying to access a gated repo.", "LG041", "accept its terms"),
        ("torch.distributed.DistBackendError: NCCL error in: a.hpp:2, invalid usage (run with NCCL_DEBUG=WARN)",
         "LG210", "no more ranks"),
    ],
)  # fmt: skip
def test_a_quote_whose_remedy_is_a_setting_is_changed_and_tried_again(message, cause, words):
    assert answer_of(message) == (cause, "likely", "change and retry")
    assert words in diagnose_text(message).change


def test_a_group_without_parameters_and_a_copy_of_an_engine():
    group = ("deepspeed/runtime/zero/stage3.py", "_odd_setup", "dtype = optimizer.param_groups[0]['params'][0].dtype")
    text = traceback_text([MAIN, group], "IndexError: list index out of range")
    assert answer_of(text) == ("LG147", "likely", "change and retry")
    copied = [MAIN, ("/usr/lib/python3.11/copy.py", "deepcopy", "rv = reductor(4)")]
    text = traceback_text(copied, "TypeError: cannot pickle 'odd.Group' object")
    assert answer_of(text) == ("LG216", "likely", "change and retry")
    assert "before `deepspeed.initialize`" in diagnose_text(text).change


def test_a_column_of_the_batch_is_no_setting():
    call = ("odd/trainer.py", "step", "out = model(**batch)")
    message = "TypeError: OddForCausalLM.forward() got an unexpected keyword argument 'odd_ids'"
    diagnosis = diagnose_text(traceback_text([MAIN, call], message))
    assert "which is in its batch" in diagnosis.title
    settings = ("odd/trainer.py", "build", "out = Odd(**section)")
    assert "dictionary of settings" in diagnose_text(traceback_text([MAIN, settings], message)).title


def test_a_state_of_other_sizes_is_named_in_the_step_of_an_optimizer():
    message = (
        "RuntimeError: The size of tensor a (40) must match the size of tensor b (80) at non-singleton dimension 0"
    )
    step = [MAIN, ("torch/optim/odd.py", "_multi_tensor_odd", "torch._foreach_lerp_(a, b, 0.1)")]
    assert answer_of(traceback_text(step, message)) == ("LG032", "likely", "change and retry")
    assert diagnose_text(traceback_text([MAIN, ("/job/model.py", "forward", "a + b")], message)).cause == "LG082"


def test_a_file_that_a_model_reads_below_zero_init_is_no_nvme_path():
    init = (f"{ZERO}/partition_parameters.py", "wrapper", "f(module, *args, **kwargs)")
    message = "FileNotFoundError: [Errno 2] No such file or directory: 'odd.pt'"
    own = traceback_text([MAIN, init, ("/job/model.py", "__init__", "torch.load(path)")], message)
    assert diagnose_text(own).cause == "LG054"
    swap = (f"{ZERO}/stage3.py", "_configure_tensor_swapping", "os.makedirs(folder)")
    assert diagnose_text(traceback_text([MAIN, swap], message)).cause == "OF026"


def test_a_placeholder_that_a_check_refuses():
    message = "TypeError: DummyScheduler is not a Scheduler"
    frames = [MAIN, ("torch/optim/odd.py", "__init__", "raise TypeError(")]
    assert answer_of(traceback_text(frames, message)) == ("LG293", "likely", "change and retry")


@pytest.mark.parametrize(
    "message",
    [
        "ImportError: OddAO is not available. Choose a different backend.",
        "ImportError: `odd_engine` was not found on your system. Please install it",
        "RuntimeError: the package `odd_smi` must be installed to set it",
    ],
)
def test_a_package_that_says_what_it_lacks(message):
    text = traceback_text([MAIN, ("odd/backends.py", "choose", "raise ImportError(")], message)
    assert answer_of(text) == ("LG220", "likely", "change and retry")
    own = traceback_text([MAIN, ("/job/backends.py", "choose", "raise ImportError(")], message)
    assert diagnose_text(own).cause != "LG220"


@pytest.mark.parametrize(
    "mark", ["> ", "- ", "**", "[odd-0] ", "ERROR:odd.run:", "stderr: ", "E       ", "    ", "12: "]
)
def test_an_exception_in_a_quote_or_behind_a_logger_is_read(mark):
    message = "AttributeError: 'PairSet' object has no attribute 'real_epoch'"
    diagnosis = diagnose_text(f"{mark}{message}{'**' if mark == '**' else ''}\n")
    assert (diagnosis.cause, diagnosis.message) == ("LG227", message)


@pytest.mark.parametrize(
    "line", ["WARNING:odd:ValueError: is caught", "note: ValueError: is caught", "> a ValueError: x"]
)
def test_words_around_an_exception_are_no_mark_of_a_quote(line):
    assert diagnose_text(f"{line}\n").state == "no failure seen"


def test_marks_without_an_exception_take_no_longer_on_a_long_line():
    assert diagnose_text("- " * 40_000 + "\n" + ">" * 80_000 + "\n").state == "no failure seen"


@pytest.mark.parametrize(
    ("message", "cause"),
    [
        ("global batch size (100) is not divisible by micro batch size (4) times data parallel size (8)", "LG290"),
        ("No module named 'liger_kernel'", "LG064"),
        ("[Errno 2] No such file or directory: '/odd/path'", "LG054"),
        ("`predict_with_generate` is incompatible with DeepSpeed ZeRO-3.", "LG185"),
    ],
)
def test_a_message_that_lost_the_name_of_its_exception(message, cause):
    diagnosis = diagnose_text(f"{message}\n")
    assert (diagnosis.cause, diagnosis.confidence, diagnosis.message) == (cause, "likely", message)
    among_others = f"one\ntwo\nthree\n{message}\n"
    assert diagnose_text(among_others).cause == cause
    assert diagnose_text(f"{among_others}four\n").state == "no failure seen"
    assert diagnose_text(f"{{'loss': 1.5}}\n{among_others}").state == "no failure seen"


@pytest.mark.parametrize(
    "note",
    [
        "falls back to reduce_scatter because tensor size = 9 is not divisible by 4",
        "UserWarning: the batch is not divisible by 4",
        "Invalidate trace cache @ step 9: expected module 3, but got module 3",
        "Loading the model with dtype torch.bfloat16",
    ],
)
def test_a_note_that_lost_its_logger_is_no_failure(note):
    assert diagnose_text(f"{note}\n").state == "no failure seen"


@pytest.mark.parametrize(
    ("frames", "error", "cause", "words"),
    [
        ([], "AttributeError: 'DeepSpeedEngineWrapper' object has no attribute '_zero9_consolidated_fp16_odd'", "LG227",
         "gave it another name"),
        ([], "AttributeErrorAttributeError: : 'DeepSpeedEngine' object has no attribute 'save_fp16_odd'", "LG227",
         "gave it another name"),
        ([("accelerate/accelerator.py", "no_sync", "with context():")],
         "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2", "LG115",
         "since 0.16"),
        ([("pydantic/_internal/_odd.py", "__new__", "f(x)")], "TypeError: odd() arg 1 must be a class", "LG222",
         "another major version of pydantic"),
        ([], "TypeError: __init__() got an unexpected keyword argument 'warmup_odd_steps'", "LG096", "scheduler"),
        ([("/job/odd.py", "<module>", "from odd_data.tables import (")], "", "LG089", "the log ends in an import"),
    ],
)  # fmt: skip
def test_a_pair_that_renamed_or_refuses_something(frames, error, cause, words):
    diagnosis = diagnose_text(traceback_text(frames, error).rstrip() + "\n" if frames else f"{error}\n")
    assert (diagnosis.cause, words in diagnosis.title) == (cause, True), diagnosis.title
    assert decide_action(diagnosis).action == "change and retry"


def test_warnings_of_pydantic_explain_an_import_that_is_cut():
    warning = "/env/pydantic-2.0a9/pydantic/odd.py:9: UserWarning: Valid config keys have changed in V2:\n"
    frames = [("/job/odd.py", "<module>", "from transformers.modeling_utils import (")]
    diagnosis = diagnose_text(warning + traceback_text(frames, "").rstrip() + "\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG222", "likely")
    assert '"pydantic<2"' in diagnosis.change
    other = diagnose_text(warning + traceback_text(frames, "ImportError: no odd part"))
    assert other.cause != "LG222"  # a warning alone is no cause


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("def fit_odd_parts(model, odd_mask):", "has `odd_mask` in torch 9.1"),
        ("def fit_odd_parts(model, other):", "takes no `odd_mask`, nor does a release of today (9.1)"),
        ("def fit_odd_parts(model, **others):", "has `odd_mask` in torch 9.1"),
        ("def fit_parts(model):", "of another release than the one that defines it"),
    ],
)
def test_the_package_that_defines_a_function_is_named(signature, words, tmp_path, monkeypatch):
    (tmp_path / "odd.py").write_text(f"import odd\n{signature}\n    pass\n")
    installed = Installation("torch", tmp_path, "9.1")
    monkeypatch.setattr(release_pair, "find_installation", lambda name: installed if name == "torch.nn" else None)
    monkeypatch.setattr(release_pair, "find_version", lambda _: "9.1")
    diagnosis = diagnose_text("TypeError: fit_odd_parts() got an unexpected keyword argument 'odd_mask'\n")
    assert (diagnosis.cause, diagnosis.confidence) == ("LG227", "likely")
    assert words in diagnosis.title
    short = diagnose_text("TypeError: fit() got an unexpected keyword argument 'odd_mask'\n")
    assert "torch" not in short.title


def test_a_parent_of_another_release():
    frames = [("/job/odd.py", "fit", "x = super()._fit_odd()")]
    diagnosis = diagnose_text(traceback_text(frames, "AttributeError: 'super' object has no attribute '_fit_odd'"))
    assert (diagnosis.cause, "calls `_fit_odd` of its parent" in diagnosis.title) == ("LG227", True)


@pytest.mark.parametrize(
    ("why", "cause"), [("extra fields not permitted", "SP005"), ("value is not a valid integer", "SP006")]
)
def test_what_pydantic_1_refuses(why, cause):
    lines = f"pydantic.error_wrappers.ValidationError: 1 validation error for DeepSpeedZeroConfig\nodd_size\n  {why} (type=odd)\n"
    diagnosis = diagnose_text(lines)
    assert (diagnosis.cause, "`odd_size`" in diagnosis.title) == (cause, True)
    assert decide_action(diagnosis).action == "change and retry"
