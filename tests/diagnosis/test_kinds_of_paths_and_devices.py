# SPDX-License-Identifier: Apache-2.0
"""Kinds of lost files, of devices and of parts that do not fit, each with siblings that no row names. Needs nothing."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

LOST = "FileNotFoundError: [Errno 2] No such file or directory: '{}'"
DEVICES = "RuntimeError: Expected all tensors to be on the same device, but found at least two devices, {} and {}!"
SCRIPT = ("/job/odd.py", "main", "odd.run(args)")
TRAINER = ("transformers/trainer.py", "_save_checkpoint", "{}")


def answer(text: str) -> tuple[str, str, str, str]:
    """(cause, confidence, action, title and change) of a log."""
    diagnosis = diagnose_text(text)
    decision = decide_action(diagnosis)
    action = decision.action if decision else ""
    return diagnosis.cause, diagnosis.confidence, action, f"{diagnosis.title} {diagnosis.change}"


@pytest.mark.parametrize(
    ("path", "cause", "words"),
    [
        ("odd-7b/model_config.json", "LG054", "one of another form"),
        ("/w/odd/vocab_odd.txt", "LG054", "a part of the download"),
        ("odd/odd_text.model", "LG054", "`odd_text.model`"),
        ("odd_ds/zero3.json", "LG054", "relative path"),
        ("conf/ds_config.json", "LG054", "relative path"),
        ("/conf/deepspeed_config.json", "LG054", "is not there"),
        ("~/rows/a.jsonl", "LG054", "expands the `~`"),
        ("/h/.cache/huggingface/hub/models--a/snapshots/1f/part.bin2", "LG041", "lacks a file"),
        ("/h/.cache/torch_extensions/py9/odd_adam/odd_adam.so", "LG025", "first error of the build"),
        ("/h/.cache/huggingface/modules/transformers_modules/a/odd_b/modeling_c.py", "LG227", "absolute path"),
        ("oddcc", "LG064", "PATH"),
        ("hostfile", "LG054", "relative path"),
    ],
)
def test_a_path_tells_what_is_missing(path, cause, words):
    for text in (f"{LOST.format(path)}\n", traceback_text([("subprocess.py", "_run", "x")], LOST.format(path))):
        found, confidence, action, said = answer(text)
        assert (found, confidence, action) == (cause, "likely", "change and retry")
        assert words in said


def test_a_json_that_deepspeed_reads_is_no_part_of_a_model():
    frames = [("deepspeed/runtime/config.py", "__init__", "open(config_file)")]
    assert answer(traceback_text(frames, LOST.format("/x/config.json")))[0] != "LG041"


@pytest.mark.parametrize(
    "error",
    [
        "ModuleNotFoundError: No module named 'transformers_modules.odd-7b'",
        "AttributeError: module 'transformers_modules.odd.tokenization_odd' has no attribute 'OddTokenizer'",
    ],
)
def test_a_copy_of_the_models_code_may_be_incomplete(error):
    cause, confidence, action, said = answer(error + "\n")
    assert (cause, confidence, action) == ("LG227", "likely", "change and retry")
    assert "transformers_modules" in said
    assert "installed transformers has no" not in said


@pytest.mark.parametrize(
    ("frames", "devices", "words"),
    [
        ([], ("cuda:0", "cuda:3"), "start one process per GPU"),
        ([SCRIPT], ("cuda:1", "cuda:0"), "start one process per GPU"),
        ([], ("cuda:2", "cpu"), "`offload_optimizer`"),
        ([("/h/modules/transformers_modules/odd/odd.py", "forward", "x + y")], ("cuda:1", "cpu"), "newest code of the"),
        ([SCRIPT], ("cuda:1", "cpu"), "move the inputs"),
    ],
)
def test_two_devices_are_never_certain(frames, devices, words):
    error = DEVICES.format(*devices)
    cause, confidence, action, said = answer(traceback_text(frames, error) if frames else f"{error}\n")
    assert (cause, confidence, action) == ("LG081", "likely", "change and retry")
    assert words in said


def test_ids_and_their_embedding_on_two_devices():
    error = (
        f"{DEVICES.format('cuda:0', 'cpu')} (when checking argument for argument index in method wrapper__index_select)"
    )
    assert "token ids" in answer(f"{error}\n")[3]


@pytest.mark.parametrize("optimizer", ["DeepSpeedZeroOptimizer_Stage9", "AdamOdd", "OddOptimizer"])
@pytest.mark.parametrize("name", ["train", "eval"])
def test_an_optimizer_is_told_to_train_by_another_release(optimizer, name):
    text = f"AttributeError: '{optimizer}' object has no attribute '{name}'\n"
    cause, _, action, said = answer(text)
    assert (cause, action) == ("LG089", "change and retry")
    assert "pip install -U transformers accelerate" in said


@pytest.mark.parametrize(
    ("frames", "cause", "words"),
    [
        ([TRAINER, ("peft/odd.py", "__getattr__", "return getattr(self.base, name)")], "LG120", "through a launcher"),
        ([SCRIPT, ("torch/nn/modules/module.py", "__getattr__", "")], "LG227", "odd.run(args)"),
        ([TRAINER, ("/usr/lib/python3.9/shutil.py", "_rmtree_safe_fd", "")], "LG236", "transformers 4.39"),
        ([SCRIPT, ("/usr/lib/python3.9/subprocess.py", "_execute_child", "")], "LG054", "PATH"),
        ([SCRIPT, ("transformers/utils/hub.py", "cached_file", "")], "LG041", "absolute path"),
        ([SCRIPT, ("torch/cuda/__init__.py", "set_device", "")], "LG013", "fewer GPUs than ranks"),
    ],
)
def test_the_end_of_a_cut_traceback_tells_what_failed(frames, cause, words):
    frames = [(file, function, code.format("self.wrapped.save_checkpoint(x)")) for file, function, code in frames]
    text = "".join(line for line in traceback_text(frames, "").splitlines(keepends=True) if line.strip())
    found, confidence, action, said = answer(text)
    assert (found, confidence, action) == (cause, "likely", "change and retry")
    assert words in said


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("RuntimeError: ProcessGroup NCCL does not support odd_gather_base", "LG088", "newer torch"),
        ("RuntimeError: ProcessGroupOdd does not support odd_scatter", "LG088", "stage 0 or 1"),
        ("AttributeError: can't set attribute 'odd_token'", "LG227", "`odd_token`"),
        ("AttributeError: property 'odd' of 'OddTokenizer' object has no setter", "LG227", "`odd`"),
        ("ValueError: 70007 is not in list", "LG227", "download all files of the model"),
        ("NameError: name 'round_odd' is not defined", "LG096", "install the package"),
        ("ValueError: DeepSpeed is not compatible with MP. n_gpu: 3, local_world_size: 1.", "LG183", "NPROC_PER_NODE"),
        (
            "RuntimeError: Error(s) in loading state_dict for Odd:\n\tMissing key(s) in state_dict: "
            '"a.0.b.odd_new", "a.1.b.odd_new".\n\tUnexpected key(s) in state_dict: "a.0.b.odd_old", "a.1.b.odd_old".',
            "LG031",
            "`odd_old`",
        ),
        (
            "ValueError: Please correct the following DeepSpeed config values that mismatch TrainingArguments values:\n"
            "- ds scheduler.params.odd_steps=0 vs hf odd_steps (calculated)=73\n",
            "LG180",
            "became 0",
        ),
    ],
)
def test_parts_of_different_releases_in_one_line(error, cause, words):
    found, confidence, action, said = answer(f"{error}\n")
    assert (found, confidence, action) == (cause, "likely", "change and retry")
    assert words in said


def test_a_port_that_a_rank_cannot_open_may_be_that_of_its_sibling():
    frames = [SCRIPT, ("deepspeed/comm/comm.py", "init_distributed", "init(backend)")]
    text = traceback_text(
        frames, "RuntimeError: The server socket has failed to bind to (errno: 98 - Address already in use)"
    )
    cause, confidence, action, said = answer(text)
    assert (cause, confidence, action) == ("LG066", "likely", "change and retry")
    assert "take themselves for rank 0" in said


LAUNCHER = "".join(f"[2025-03-01 10:00:0{n},000] [INFO] [launch.py:{n}:main] odd {n}\n" for n in range(9))


@pytest.mark.parametrize(
    ("last", "cause"),
    [("No module named 'odd_tracker'", "LG064"), ("[Errno 2] No such file or directory: 'odd/config.json'", "LG054")],
)
def test_the_last_line_of_a_log_may_be_an_exception_without_its_name(last, cause):
    assert answer(f"{LAUNCHER}{last}\n")[:3] == (cause, "likely", "change and retry")
    assert diagnose_text(f"{LAUNCHER}{last}\nodd rows are read\n").state == "no failure seen"


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("FileNotFoundError: [Errno 2] No such file or directory: '/a/cuda:/b/cuda/bin/nvcc'", "LG021", "a list of paths"),
        ("RuntimeError: Found no NVIDIA driver on your system. Please check", "LG012", "--gpus all"),
        ("rtOddLaunch failed, reason=[driver error:out of memory][FUNC:Odd]", "LG001", "NPU"),
        ("  Input should be a valid integer, got a number with a fractional part [type=int_from_float, input_value=7.5]",
         "SP006", "transformers 4.45"),
        ('ValueError: Trying to set a tensor of shape torch.Size([9, 4]) in "odd" (which has shape torch.Size([0])), this',
         "LG031", "ZeRO stage 2 for a quantized model"),
    ],
)  # fmt: skip
def test_a_setting_or_a_host_that_does_not_fit(error, cause, words):
    found, confidence, action, said = answer(f"[rank1]: {error}\n")
    assert (found, confidence, action) == (cause, "likely", "change and retry")
    assert words in said


def test_a_kill_after_the_adapters_were_made_is_while_the_engine_is_built():
    adapters = (
        "Loading checkpoint shards: 100%|#| 9/9\ntrainable params: 4 || all params: 6742609920 || trainable%: 0.1\n"
    )
    end = "[2025-03-01 10:00:09,000] [ERROR] [launch.py:324:sigkill_handler] ['python', 'odd.py'] exits with return code = -9\n"
    diagnosis = diagnose_text(LAUNCHER + adapters + end)
    assert (diagnosis.phase.name if diagnosis.phase else "") == "engine"
    assert "offload less" in f"{diagnosis.change} {diagnosis.allocation}"


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("RuntimeError: CUDA out of memory.", "LG001", "micro-batch"),
        ("NPU out of memory", "LG001", "micro-batch"),
        ("AttributeError: 'NoneType' object has no attribute 'train_batch'", "LG120", "through a launcher"),
        ("ImportError: the installed odd needs a GPU, but none was seen: CUDA is not available", "LG012", "--gpus all"),
        ("ValueError: Undefined dataset odd_rows in rows_info.json.", "LG234", "add an entry `odd_rows`"),
        ("yaml.parser.ParserError: while parsing a block mapping", "LG291", "correct it at the line"),
        ("PermissionError: [Errno 13] Permission denied: '/odd/cache'", "LG051", "`/odd/cache`"),
        ("AttributeError: 'DeepSpeedOddConfig' object has no attribute 'odd_io'", "LG227", "install the DeepSpeed"),
        ("TypeError: can't multiply sequence by non-int of type 'float'", "LG295", "write it as a number"),
        ("RuntimeError: nvrtc: error: invalid value for --gpu-architecture (-arch)", "LG011", "newer torch"),
    ],
)
def test_a_message_alone_has_a_cause(error, cause, words):
    found, confidence, action, said = answer(f"{error}\n")
    assert (found, confidence, action) == (cause, "likely", "change and retry")
    assert words in said


def test_a_value_that_is_none_is_no_pipeline_without_its_frames():
    error = "TypeError: 'NoneType' object is not callable"
    assert diagnose_text(f"{error}\n").cause == ""
    assert diagnose_text(traceback_text([("deepspeed/runtime/pipe/engine.py", "f", "x()")], error)).cause == "LG093"
    values = "ValueError: too many values to unpack (expected 2)"
    assert diagnose_text(f"{values}\n").cause == ""
    assert diagnose_text(traceback_text([("torch/optim/adamw.py", "step", "a, b = betas")], values)).cause == "OP006"


@pytest.mark.parametrize(
    ("file", "is_program"),
    [
        ("/odd/LLaMA-Factory/src/llamafactory/odd.py", True),
        ("/odd/gpt-neox/megatron/odd.py", True),
        ("/envs/qwen/lib/python3.9/site-packages/odd/odd.py", False),
        ("/odd/mine/odd.py", False),
    ],
)
@pytest.mark.parametrize("error", ["ValueError: odd things happen", "KeyError: 'odd_thing'"])
def test_a_program_of_others_has_newer_releases(file, is_program, error):
    diagnosis = diagnose_text(traceback_text([(file, "go", "x = y[z]")], error))
    assert diagnosis.cause == ""
    decision = decide_action(diagnosis)
    assert ("newest release of that program" in diagnosis.change) is is_program
    assert decision is None or (decision.action == "change and retry") is (is_program or "site-packages" in file)


@pytest.mark.parametrize(
    ("error", "cause", "words"),
    [
        ("AttributeError: module 'os' has no attribute 'sched_getaffinity'", "LG089", "WSL 2"),
        ("ModuleNotFoundError: No module named 'fcntl'", "LG089", "WSL 2"),
        ("DistStoreError: use_libuv was requested but PyTorch was built without libuv support", "LG211", "USE_LIBUV=0"),
        ('OSError: [WinError 126] Odd. Error loading "C:\\odd\\odd.dll" or one of', "LG223", "odd.dll"),
        ("RuntimeError: operator oddvision::nms does not exist", "LG223", "`nms` of `oddvision`"),
        ("AttributeError: '_OpNamespace' 'aten' object has no attribute '_odd'", "LG223", "newer torch"),
        ("AttributeError: 'torch.odd' object has no attribute 'width'", "LG227", "newer torch"),
        ("pkg_resources.VersionConflict: (odd 1.2 (/x), Requirement.parse('odd>=2.1'))", "LG227", '`pip install "odd>=2.1"`'),
        ("pkg_resources.DistributionNotFound: The 'odd-kit' distribution was not found", "LG220", "`odd-kit`"),
        ("RuntimeError: Function OddBackward0 returned an invalid gradient at index 3 - got [0]", "LG083", "size 0"),
        ("KeyError: 'param_shapes'", "LG125", "`param_shapes`"),
        ("RuntimeError: Given groups=1, weight of size [0], expected input[1, 3, 7, 7]", "LG083", "size 0"),
        ("UnicodeDecodeError: 'gbk' codec can't decode byte 0x80 in position 7", "LG044", "PYTHONUTF8=1"),
        ('RuntimeError: Attempted to set the storage of a tensor on device "cpu" to a storage on different device "odd:0"',
         "LG081", "without `device_map`"),
        ("NCCL WARN Cuda failure 'peer access is not supported between these two devices'", "LG072", "NCCL_P2P_DISABLE=1"),
        ("ValueError: Unknown odd_scheduler type: rising", "LG291", "Unknown odd_scheduler type: rising"),
        ("NotImplementedError: Unsupported attention `odd_ring`", "LG291", "odd_ring"),
    ],
)  # fmt: skip
def test_a_message_alone_tells_the_parts_that_do_not_fit(error, cause, words):
    found, confidence, action, said = answer(f"{error}\n")
    assert (found, confidence, action) == (cause, "likely", "change and retry")
    assert words in said


@pytest.mark.parametrize("error", ["RuntimeError: Invalid odd argument: 3", "ValueError: Invalid shape of odd: 3"])
def test_a_value_of_code_is_no_setting(error):
    assert diagnose_text(f"{error}\n").cause == ""


@pytest.mark.parametrize(
    "error",
    [
        "AttributeError: 'OddTokenizer' object has no attribute 'odd_words'",
        "IndexError: tuple index out of range",
        "TypeError: 'NoneType' object is not subscriptable",
        "ValueError: too many values to unpack (expected 2)",
    ],
)
def test_the_models_own_code_fails_beside_another_transformers(error):
    file = "/h/.cache/huggingface/modules/transformers_modules/odd-7b/modeling_odd.py"
    cause, confidence, action, said = answer(traceback_text([SCRIPT, (file, "forward", "self.x[1]")], error))
    assert (cause, confidence, action) == ("LG227", "likely", "change and retry")
    assert "`transformers_version`" in said


@pytest.mark.parametrize(
    ("file", "function"),
    [("torch/utils/data/dataloader.py", "_next_data"), ("/job/odd_dataset.py", "__getitem__")],
)
def test_a_cut_traceback_in_the_data_is_one_of_a_record(file, function):
    text = "".join(traceback_text([SCRIPT, (file, function, "")], "").splitlines(keepends=True)[:-1])
    cause, confidence, action, said = answer(text)
    assert (cause, confidence, action) == ("LG044", "likely", "change and retry")
    assert "num_workers: 0" in said


def test_no_gpu_in_one_line_is_a_matter_of_the_start():
    cause, confidence, action, said = answer("RuntimeError: No CUDA GPUs are available\n")
    assert (cause, confidence, action) == ("LG012", "likely", "change and retry")
    assert "CUDA_VISIBLE_DEVICES" in said
