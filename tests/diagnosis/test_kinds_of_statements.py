# SPDX-License-Identifier: Apache-2.0
"""Errors that a quote has changed, or that no exception reports, and batches, numbers and releases of other forms.

Each kind with siblings. Needs nothing; seconds.
"""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

PIPE = ("deepspeed/runtime/pipe/engine.py", "_exec_forward_pass", "self.loss = self.module.loss_fn(outputs, labels)")
STEPS = "step=100 loss: 2.0\nstep=200 loss: 1.9\n"
MISMATCH = "Expected input batch_size ({a}) to match target batch_size ({b})."
LATEST = "[WARNING] [engine.py:9:load_checkpoint] Unable to find latest file at {path}/latest, if trying to load latest"


@pytest.mark.parametrize(
    ("quote", "said", "change"),
    [
        ('Value Error, "odd_packing should be set in your model config file"', "ValueError: odd_packing should", "move `odd_packing`"),
        ("Overflow Error! the index is too large, reduce the batch size", "OverflowError: the index", "reduce the batch size"),
        ("Error: please set `odd_offload: true` in the yaml file", "Error: please", "set `odd_offload: true`"),
        ("You cannot use `odd_map` with ZeRO-3. Remove it from your arguments.", "You cannot", "remove it from"),
        ("[ERROR] the model folder has no tokenizer.odd", "[ERROR] the model", "that the message names"),
        ("odd config: fsdp and deepspeed are mutually exclusive", "odd config", "that the message names"),
        ("Exception: Could not find the odd layer to wrap.", "Exception: Could", "that the message names"),
    ],
)  # fmt: skip
def test_a_sentence_that_reports_an_error_is_a_failure(quote, said, change):
    diagnosis = diagnose_text(f"{quote}\n")
    assert (diagnosis.state, diagnosis.cause, diagnosis.confidence) == ("failed", "LG291", "likely")
    assert diagnosis.message.startswith(said)
    assert change in diagnosis.change
    assert decide_action(diagnosis).action == "change and retry"


@pytest.mark.parametrize(
    ("quote", "cause", "words"),
    [
        ("fatal: unable to access 'https://odd.example/x/': Could not resolve host: odd.example", "LG040", "proxy"),
        ("docker: Error response from daemon: could not select device driver with capabilities: [[gpu]].", "LG012", "toolkit"),
        ("nvidia-smi has failed because it couldn't communicate with the driver.", "LG012", "load the driver"),
        ("[E OddGroup.cpp:475] odd thing", "", "search the web"),
        ("RuntimeError: something odd happened. Use ODD_BLOCKING=1 to debug", "", "search the web"),
    ],
)  # fmt: skip
def test_a_sentence_that_is_no_matter_of_settings(quote, cause, words):
    diagnosis = diagnose_text(f"{quote}\n")
    assert (diagnosis.state, diagnosis.cause) == ("failed", cause)
    assert words in diagnosis.change


@pytest.mark.parametrize(
    "line",
    [
        "could not find shard 4, retrying",
        "INFO the loader cannot pin memory, skipping it",
        "collect2: error: ld returned 1 exit",
    ],
)
def test_a_note_reports_no_failure(line):
    assert diagnose_text(f"{line}\n").state == "no failure seen"


def test_a_message_follows_its_name_after_lines_of_other_ranks():
    lines = (
        "AssertionError    x = layer(y)\n  File \"/a/odd.py\", line 3, in go\n: {'id': 3, 'status': 'NOT_AVAILABLE'}\n"
    )
    assert diagnose_text(lines).cause == "LG102"
    empty = lines.replace("layer(", "modules_to_save[0](").replace("'NOT_A", "'ds_numel': 0, 'x': 'NOT_A")
    assert "peft copied a module" not in diagnose_text(lines).title
    assert (
        "peft copied a module"
        in diagnose_text("self.modules_to_save\n" + empty.replace("'status'", "'status': 'NOT_AVAILABLE', 'y'")).title
    )


@pytest.mark.parametrize(
    ("quote", "cause", "words"),
    [
        ("odd.CheckpointError: Recomputed values for the following tensors\nhave different metadata than in the forward.\n"
         "tensor at position 4: saved {'shape': [10]} vs recomputed {'shape': [0]}", "LG083", "recomputed a layer"),
        ("ValueError: Please correct the following DeepSpeed config\nvalues that mismatch TrainingArguments values:\n"
         "- ds train_batch_size=8 vs hf train_batch_size (calculated)=16", "LG180", "train_batch_size"),
        ("AssertionError: zero stage 3 requires\nan optimizer", "LG084", "optimizer"),
        ("OddError: something odd in the step\nepoch 3 loss 2.3", "", "in the step"),
    ],
)  # fmt: skip
def test_a_message_that_a_quote_has_broken(quote, cause, words):
    diagnosis = diagnose_text(f"{quote}\n")
    assert diagnosis.cause == cause
    assert words in diagnosis.title
    assert "epoch 3" not in diagnosis.message


@pytest.mark.parametrize(
    ("log", "words", "cause"),
    [
        (f"{STEPS}ValueError: {MISMATCH.format(a=16, b=6)}\n", "after 200 steps", "LG296"),
        (f"{STEPS}RuntimeError: The size of tensor a (8) must match the size of tensor b (3) at non-singleton dimension 0\n", "after 200 steps", "LG296"),
        (traceback_text([PIPE], f"ValueError: {MISMATCH.format(a=4096, b=64)}"), "pipeline keeps the shapes", "LG296"),
        (f"ValueError: {MISMATCH.format(a=4096, b=64)}\n", "logits and labels", "LG296"),
        ("RuntimeError: odd: grad_output[0] has a shape of torch.Size([8, 40]) and output[0] has a shape of torch.Size([4, 40]).\n", "batch of 8", "LG296"),
        ("RuntimeError: output tensor size must be equal to world_size times input tensor size\n", "different sizes", "LG071"),
    ],
)  # fmt: skip
def test_a_batch_of_another_size(log, words, cause):
    diagnosis = diagnose_text(log)
    assert words in diagnosis.title
    assert diagnosis.cause == cause
    assert ("drop_last" in diagnosis.change) is (words != "logits and labels")


@pytest.mark.parametrize(
    ("value", "cause", "words"),
    [
        ("90a", "LG011", "TORCH_CUDA_ARCH_LIST"),
        ("12.0a", "LG011", "TORCH_CUDA_ARCH_LIST"),
        ("0+cu118", "LG227", "newer release"),
        ("tcp://10.0.0.1:80", "LG061", "enableServiceLinks"),
        ("4(x2)", "LG061", "SLURM_NTASKS"),
        ("GPU-4f2a", "LG013", "CUDA_VISIBLE_DEVICES"),
        ("${ODD_PORT}", "LG065", "export the variable"),
        ("best", "LG034", "checkpoint-500"),
        ("5e8", "LG291", "without exponent"),
        ("", "LG291", "`echo` it"),
    ],
)
def test_a_text_in_place_of_a_number(value, cause, words):
    diagnosis = diagnose_text(f"ValueError: invalid literal for int() with base 10: '{value}'\n")
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert words in diagnosis.change


@pytest.mark.parametrize(
    ("frame", "error", "words"),
    [
        (("torch/utils/cpp_extension.py", "_get_cuda_arch_flags", "arch_list[-1] += '+PTX'"), "IndexError: list index out of range", "no GPU was visible"),
        (("deepspeed/ops/op_builder/builder.py", "compute_capability_args", "num = cc[0] + cc[2]"), "IndexError: string index out of range", "without a dot"),
    ],
)  # fmt: skip
def test_a_list_of_gpu_architectures(frame, error, words):
    diagnosis = diagnose_text(traceback_text([frame], error))
    assert diagnosis.cause == "LG011"
    assert words in diagnosis.title


@pytest.mark.parametrize(
    ("path", "error", "words"),
    [
        ("odd/tiny-model", "", "name of a model on the Hub"),
        ("/odd/run5", "TypeError: 'NoneType' object is not subscriptable", "nothing was loaded"),
    ],
)
def test_a_warning_of_the_checkpoint_explains_what_fails_next(path, error, words):
    traceback = 'Traceback (most recent call last):\n  File "/odd/main.py", line 20, in main\n    go(x["y"])\n'
    diagnosis = diagnose_text(f"{LATEST.format(path=path)}\n{traceback}{error}\n")
    assert diagnosis.cause == "LG034"
    assert words in diagnosis.title
    assert path in diagnosis.title
    assert diagnose_text(f"{traceback}{error}\n").cause == ""


def test_another_warning_is_noted_before_an_exception_that_is_cut():
    log = 'WARNING: could not find odd.model\nTraceback (most recent call last):\n  File "/a/o.py", line 2, in go\n    go()\n'
    assert any("could not find odd.model" in note for note in diagnose_text(log).notes)


@pytest.mark.parametrize(
    ("caller", "words"),
    [
        ("oddrl/engine.py", "`oddrl` passes `odd_flag` to `vllm`"),
        ("/home/me/odd.py", "the program (`/home/me/odd.py`) passes `odd_flag` to `vllm`"),
        ("vllm/odd.py", "`vllm` calls it"),
    ],
)
@pytest.mark.parametrize("is_quote", [False, True])
def test_a_keyword_is_blamed_on_the_package_that_passes_it(caller, words, is_quote):
    frames = [
        (caller, "start", "llm = vllm.LLM(*args, **kwargs)"),
        ("vllm/llm.py", "__init__", "engine_args = EngineArgs("),
    ]
    log = traceback_text(frames, "TypeError: EngineArgs.__init__() got an unexpected keyword argument 'odd_flag'")
    diagnosis = diagnose_text(log.replace("/opt/conda/lib/python3.11/site-packages/", "") if is_quote else log)
    assert words in diagnosis.title or (is_quote and "home" in caller)


def test_accelerate_is_the_one_that_is_too_old_for_an_optimizer_that_trains():
    frames = [("transformers/trainer.py", "step", "self.optimizer.train()"), ("accelerate/optimizer.py", "train", "return self.optimizer.train()")]  # fmt: skip
    diagnosis = diagnose_text(traceback_text(frames, "AttributeError: 'AdamW' object has no attribute 'train'"))
    assert diagnosis.title.startswith("accelerate is too old")


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: expand(torch.cuda.OddTensor{[0]}, size=[1, 40]): the number of sizes provided (2) is odd",
        "RuntimeError: shape mismatch: value tensor of shape [0] cannot be broadcast to indexing result of shape [3, 40]",
        "RuntimeError: Given normalized_shape=[40], expected input with shape [*, 40], but got input of size[0]",
        "RuntimeError: einsum(): operands do not broadcast with remapped shapes: [2, 6]->[2, 6, 1] [0]->[1, 1, 0]",
    ],
)
def test_a_tensor_of_size_zero_is_one_of_zero3(error):
    assert diagnose_text(f"{error}\n").cause == "LG083"


@pytest.mark.parametrize(
    ("code", "function", "error", "cause"),
    [
        ("n = norm(model.head.weight, dim=1)", "go", "IndexError: Dimension out of range (expected to be in range of [-1, 0], but got 1)", "LG083"),
        ("rows, columns = layer.weight.shape", "go", "ValueError: not enough values to unpack (expected 2, got 1)", "LG083"),
        ("rows, columns = image.shape", "go", "ValueError: not enough values to unpack (expected 2, got 1)", ""),
        ("print(100 * trained / total)", "print_trainable_parameters", "ZeroDivisionError: division by zero", "LG083"),
        ("print(100 * trained / total)", "go", "ZeroDivisionError: division by zero", ""),
    ],
)  # fmt: skip
def test_a_weight_that_zero3_keeps_in_pieces(code, function, error, cause):
    assert diagnose_text(traceback_text([("/home/me/odd.py", function, code)], error)).cause == cause


def test_a_layer_is_called_as_another_release_has_it():
    error = "TypeError: OddAttention.forward() missing 1 required positional argument: 'position_embeddings'"
    assert "another release of transformers" in diagnose_text(f"{error}\n").title
    assert diagnose_text(f"{error.replace('OddAttention', 'OddModel')}\n").cause == "LG294"


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("ValueError: You want the odd offload but no odd path is given", "LG291"),
        ("OddConfigurationError: the odd layer has another width than its head", "LG291"),
        ("ValueError: too odd", ""),
        ("RuntimeError: the odd layer has another width than its head", ""),
    ],
)
def test_a_check_says_what_is_wrong(error, cause):
    diagnosis = diagnose_text(f"{error}\n")
    assert diagnosis.cause == cause
    assert not cause or error.partition(": ")[2] in diagnosis.title
