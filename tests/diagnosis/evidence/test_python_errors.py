# SPDX-License-Identifier: Apache-2.0
"""Kinds of Python's exceptions, each with siblings that no message names. Needs nothing; seconds."""

from __future__ import annotations

import pytest

from harness.diagnosis.decision import decide_action
from tests.support.tracebacks import diagnose_text, traceback_text

MAIN = ("/job/fit.py", "main", "go()")


def explain(error, *frames, log=""):
    diagnosis = diagnose_text(log + traceback_text([MAIN, *frames], error, 1))
    return diagnosis, decide_action(diagnosis)


@pytest.mark.parametrize(
    ("code", "error", "cause", "words", "action"),
    [
        (("/job/fit.py", "make", "deepspeed.zero.Init(shard_group=g)"),
         "TypeError: __init__() got an unexpected keyword argument 'shard_group'", "LG227",
         "`deepspeed.zero.Init` of `deepspeed` got an unexpected keyword argument 'shard_group'", "change and retry"),
        (("/job/fit.py", "make", "m = PeftThing(r=8, qq=1)"),
         "TypeError: PeftThing.__init__() got an unexpected keyword argument 'qq'", "LG227", "of `peft`",
         "change and retry"),
        (("oddlib/opt.py", "step", "zero.fetch(mode=1)"),
         "TypeError: DeepSpeedZeroThing.fetch() got an unexpected keyword argument 'mode'", "LG227",
         "`oddlib` calls it as another release", "change and retry"),
        (("oddlib/opt.py", "step", "fetch()"),
         "TypeError: fetch() missing 1 required positional argument: 'mode'", "LG227",
         "`oddlib` calls it as another release", "change and retry"),
        (("/job/fit.py", "make", "sched = SlowLR(opt, **conf['sched'])"),
         "TypeError: __init__() got an unexpected keyword argument 'warm'", "LG096",
         "`SlowLR` does not take `warm`, which comes from a dictionary of settings", "change and retry"),
        (("/job/fit.py", "make", "t = OwnTrainer(actor)"),
         "TypeError: OwnTrainer.__init__() missing 1 required positional argument: 'critic'", "LG096",
         "missing 1 required positional argument: 'critic'", "stop"),
        (("/job/fit.py", "make", "clip(x)"), "NameError: name 'clip' is not defined", "LG096", "the script uses `clip`", "change and retry"),
        (("oddlib/ops.py", "kernel", "tl.load(x)"), "NameError: name 'tl' is not defined", "LG089",
         "`kernel` of `oddlib` uses `tl`", "change and retry"),
        (("oddlib/loop.py", "fit", "return scaler"),
         "UnboundLocalError: local variable 'scaler' referenced before assignment", "LG089",
         "`fit` of `oddlib` never set `scaler`", "change and retry"),
        (("oddlib/loop.py", "fit", "return batch_no"),
         "UnboundLocalError: cannot access local variable 'batch_no' where it is not associated with a value", "LG044",
         "had nothing to loop over", "change and retry"),
        (("oddlib/save.py", "save", "if model.zero_gather_16bit_thing():"),
         "AttributeError: 'OddForCausalLM' object has no attribute 'zero_gather_16bit_thing'", "LG120",
         "bare `OddForCausalLM`", "change and retry"),
        (("/job/fit.py", "step", "model.backward(loss)"),
         "AttributeError: 'OddModel' object has no attribute 'backward'", "LG120", "bare `OddModel`", "change and retry"),
        (("deepspeed/runtime/engine.py", "_configure", "[p for p in ps if p.use_muon]"),
         "AttributeError: 'Parameter' object has no attribute 'use_muon'", "LG121", "`use_muon`", "change and retry"),
        (("deepspeed/runtime/zero/stage_1_and_2.py", "has_overflow_partitioned_grads", "for g in self.grads[i]:"),
         "TypeError: 'NoneType' object is not iterable", "LG116", "no gradient where it reduces", "change and retry"),
        (("deepspeed/runtime/zero/stage3.py", "reduce_grads_of_bucket", "new.copy_(param.grad.view(-1))"),
         "AttributeError: 'NoneType' object has no attribute 'view'", "LG116", "no gradient where it reduces",
         "change and retry"),
    ],
)  # fmt: skip
def test_the_kind_of_an_exception_and_its_place_are_the_cause(code, error, cause, words, action):
    diagnosis, decision = explain(error, code)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert words in diagnosis.title
    assert decision.action == action


def test_the_call_is_where_it_was_written_not_where_it_was_passed_on():
    passed = ("oddlib/wrap.py", "wrapped_fn", "ret_val = func(*args, **kwargs)")
    error = "TypeError: forward_all() got an unexpected keyword argument 'zz'"
    diagnosis, _ = explain(error, ("/job/fit.py", "step", "forward_all(zz=1)"), passed, passed)
    assert diagnosis.cause == "LG096"
    assert "`forward_all(zz=1)`" in diagnosis.title


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: shape '[-1, 0]' is invalid for input of size 4096",
        "RuntimeError: mat1 and mat2 shapes cannot be multiplied (8x64 and 0x1)",
        "RuntimeError: The size of tensor a (64) must match the size of tensor b (0) at dimension 1, got (64, 0)",
        "AssertionError: Padding_idx must be within num_embeddings",
    ],
)
@pytest.mark.parametrize("log", ["cmd = run --deepspeed ds_z3.json\n", "  zero_stage: 3\n", "made by ZeRO stage 3\n"])
def test_a_size_of_0_at_zero_3_is_a_parameter_in_pieces(error, log):
    diagnosis, _ = explain(error, ("/job/net.py", "forward", "y = f(x)"), log=log)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG083", "likely")
    assert "GatheredParameters" in diagnosis.change


def test_sizes_of_other_jobs_and_other_sizes_stay_what_they_were():
    frame = ("/job/net.py", "forward", "y = f(x)")
    assert explain("RuntimeError: shape '[-1, 0]' is invalid for input of size 4096", frame)[0].cause == "LG082"
    error = "RuntimeError: shape '[-1, 10]' is invalid for input of size 4096"
    assert explain(error, frame, log="zero_stage: 3\n")[0].cause == "LG082"


@pytest.mark.parametrize("function", ["_resize_token_embeddings", "_get_resized_head", "_init_weights"])
def test_weights_that_are_resized_or_initialized_in_pieces(function):
    error = "IndexError: too many indices for tensor of dimension 1"
    diagnosis, _ = explain(error, ("oddlib/modeling.py", function, "new.data[:n, :] = old.data[:n, :]"))
    assert (diagnosis.cause, "resizes or initializes" in diagnosis.title) == ("LG083", True)


@pytest.mark.parametrize("name", ["deepspeed.odd", "transformers.odd.part", "peft.odd"])
def test_a_module_that_cannot_be_found_is_never_certain(name):
    error = f"ModuleNotFoundError: No module named '{name}'"
    root = name.partition(".")[0]
    from_script, _ = explain(error, ("/job/fit.py", "<module>", f"from {name} import x"))
    own, decision = explain(error, (f"{root}/core.py", "<module>", f"from {name} import x"))
    assert (from_script.cause, from_script.confidence) == ("LG227", "likely")
    assert (own.cause, own.confidence, decision.action) == ("LG227", "likely", "change and retry")
    assert "lacks a module of its own" in own.title
    assert "a module of its own" not in from_script.title


@pytest.mark.parametrize(
    ("code", "error", "words"),
    [
        ("n = len(rows) / count", "ZeroDivisionError: division by zero", "a count is 0"),
        ("x = feats[i]", "IndexError: index 4 is out of bounds for dimension 0 with size 4", "one record of the data"),
        ("x = turns[1]", "IndexError: list index out of range", "one record of the data"),
        ("d = cfg['depth']", "KeyError: 'depth'", "settings that this line reads have no 'depth'"),
        ("d = names['depth']", "KeyError: 'depth'", "compare 'depth' with the keys"),
        ("return best", "UnboundLocalError: local variable 'best' referenced before assignment", "loop or branch"),
        ("assert False", "AssertionError", "own check"),
        ("a, b = call()", "ValueError: too many values to unpack (expected 2)", "another number of values"),
    ],
)
def test_an_unknown_exception_of_the_script_has_the_next_step_of_its_kind(code, error, words):
    diagnosis, decision = explain(error, ("/job/data.py", "read", code))
    is_of_settings = "cfg" in code
    assert diagnosis.confidence == "unknown"
    assert decision.action == ("change and retry" if is_of_settings else "stop")
    assert words in diagnosis.change
    assert words not in explain(error, ("oddlib/data.py", "read", code))[0].change


@pytest.mark.parametrize(("inner", "code"), [("AssertionError", "assert n == 5"), ("KeyError: 'pix'", "r['pix']")])
def test_the_exception_of_a_worker_is_the_cause_and_not_its_parents(inner, code):
    name = inner.partition(":")[0]
    outer = traceback_text([MAIN, ("torch/_utils.py", "reraise", "raise exception")],
                           f"{name}: Caught {name} in DataLoader worker process 3.")  # fmt: skip
    worker = traceback_text(
        [("torch/utils/data/_utils/worker.py", "_loop", "fetch()"), ("/job/d.py", "item", code)], inner
    )
    diagnosis = diagnose_text(f"{outer}Original {worker}")
    assert diagnosis.where.startswith("/job/d.py")
    assert (diagnosis.message, any("may have come first" in note for note in diagnosis.notes)) == (inner, False)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('"/cuda/host.h", line 9: catastrophic error: #error: odd compiler found', "odd compiler found"),
        ("nvcc fatal   : Value 'c++99' is not defined for option 'std'", "Value 'c++99' is not defined"),
        ("/opt/a.cu(12): error: odd thing", "odd thing"),
        ("c++: error: odd-option: no such thing", "odd-option"),
    ],
)
def test_the_compilers_first_error_is_shown(line, words):
    log = f"FAILED: x.o\n{line}\nninja: build stopped: subcommand failed.\nRuntimeError: Error building extension 'x'\n"
    diagnosis = diagnose_text(log)
    assert (diagnosis.cause, words in diagnosis.title) == ("LG024", True)


@pytest.mark.parametrize("name", ["OptimizedModule", "FullyShardedDataParallel", "DataParallel", "OddModelWrapper"])
def test_what_a_wrapper_lacks_belongs_to_the_wrapped_model(name):
    diagnosis, _ = explain(
        f"AttributeError: '{name}' object has no attribute 'odd_name'", ("/job/fit.py", "f", "m.odd_name")
    )
    assert (diagnosis.cause, f"from the {name} wrapper" in diagnosis.title) == ("LG120", True)


def test_the_name_of_zero_keeps_its_letters():
    error = "AssertionError: ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism"
    diagnosis, _ = explain(error, ("deepspeed/runtime/pipe/engine.py", "__init__", "assert a"))
    assert diagnosis.title.startswith("ZeRO stage")


@pytest.mark.parametrize(
    ("error", "frames"),
    [
        ("AssertionError: zero stage 2 requires an optimizer",
         [("trl/models/utils.py", "prepare_deepspeed", "model, *_ = deepspeed.initialize(model=model)")]),
        ("ValueError: ZeRO inference only makes sense with ZeRO Stage 3 - please adjust your config",
         [("/job/kto.py", "__init__", "self.ref_model = wrap(ref_model)")]),
        ("IndexError: list index out of range", [("/job/fit.py", "load", "teacher = start(net)")]),
    ],
)  # fmt: skip
def test_a_model_without_an_optimizer_got_the_configuration_of_the_trained_one(error, frames):
    inner = ("deepspeed/runtime/zero/stage_1_and_2.py", "__init__", "dtype = optimizer.param_groups[0]['params'][0]")
    diagnosis, decision = explain(error, *frames, inner)
    assert (diagnosis.cause, diagnosis.confidence, decision.action) == ("LG084", "likely", "change and retry")
    assert ("is not trained" in diagnosis.title, decision.changes) == (True, {})
    assert "is not trained (a reference" not in explain(error, inner)[0].title


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: The size of tensor a (0) must match the size of tensor b (64) at non-singleton dimension 0",
        "RuntimeError: shape '[4, 4]' is invalid for input of size 0: [0]",
        "IndexError: index 3 is out of bounds for dimension 0 with size (0,)",
    ],
)
def test_a_size_of_0_in_a_model_that_is_created_below_zero_init(error):
    frames = [("deepspeed/runtime/zero/partition_parameters.py", "wrapper", "f(module, *args, **kwargs)"),
              ("/job/tower.py", "__init__", "self.w.data[i] = 0")]  # fmt: skip
    diagnosis, _ = explain(error, *frames)
    assert (diagnosis.cause, "below `zero.Init`" in diagnosis.title) == ("LG083", True)
    assert "below `zero.Init`" not in explain(error, frames[1])[0].title


@pytest.mark.parametrize("part", ["'ds_shape': (0,)", "'ds_numel': 0, 'ds_shape': (3, 0)", "'ds_numel': 0"])
def test_a_parameter_that_was_empty_when_it_was_partitioned(part):
    frame = ("deepspeed/runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module", "assert a, b")
    error = f"AssertionError: {{'id': 9, 'status': 'NOT_AVAILABLE', {part}, 'persist': True}}"
    assert "already empty" in explain(error, frame)[0].title
    whole = error.replace("(0,)", "(8,)").replace("(3, 0)", "(3, 8)").replace("'ds_numel': 0", "'ds_numel': 8")
    assert "already empty" not in explain(whole, frame)[0].title


@pytest.mark.parametrize(
    ("file", "function", "name"),
    [
        ("/job/tools/deepspeed_to_megatron.py", "main", "attention.norm.weight"),
        ("/job/hf2odd.py", "rows", "odd_norm"),
        ("/job/c.py", "convert_megatron_checkpoint", "model.layers.0.odd"),
    ],
)
def test_a_name_that_a_converter_does_not_know(file, function, name):
    diagnosis, decision = explain(f"KeyError: '{name}'", (file, function, "key = TABLE[name]"))
    assert (diagnosis.cause, decision.action) == ("LG163", "change and retry")
    assert f"looks for '{name}'" in diagnosis.title
    assert explain(f"KeyError: '{name}'", ("/job/fit.py", "run", "key = TABLE[name]"))[0].cause != "LG163"


@pytest.mark.parametrize("quote", ["'", "`"])
@pytest.mark.parametrize("name", ["AcceleratorState", "PartialState"])
def test_an_accelerator_state_has_two_possible_causes(quote, name):
    error = (
        f"AttributeError: {quote}{name}{quote} object has no attribute {quote}odd{quote}. This happens if it was reset"
    )
    diagnosis, decision = explain(error, ("accelerate/state.py", "__getattr__", "raise AttributeError("))
    assert (diagnosis.confidence, decision.action) == ("likely", "change and retry")
    assert "1.9 or later" in diagnosis.change
    assert "before an Accelerator existed" in diagnosis.title


@pytest.mark.parametrize(
    ("file", "error", "feature"),
    [
        ("deepspeed/runtime/hybrid_engine.py", "RuntimeError: The size of tensor a (6) must match the size of tensor b (9)",
         "hybrid_engine"),
        ("deepspeed/runtime/progressive_layer_drop.py", "KeyError: 0", "progressive_layer_drop"),
        ("deepspeed/profiling/flops_profiler/profiler.py", "KeyError: 'odd'", "flops_profiler"),
        ("deepspeed/monitor/tensorboard.py", "TypeError: 'NoneType' object is not callable", "tensorboard"),
    ],
)  # fmt: skip
def test_a_feature_with_a_switch_that_fails_in_its_own_code_is_switched_off(file, error, feature):
    diagnosis, decision = explain(error, (file, "_prepare", "x = y(z)"))
    assert (diagnosis.cause, diagnosis.confidence) == ("LG149", "likely")
    assert decision.changes == {f"{feature}.enabled": False}
    of_model, _ = explain(error, (file, "forward", "x = y(z)"), ("/job/net.py", "layer", "a + b"))
    assert f"`{feature}` failed" not in of_model.title


@pytest.mark.parametrize(
    "code",
    [
        "g = torch.empty_like(outs[rank])",
        "d = devices[local_rank]",
        "x = parts[dist.get_rank()]",
        "h = hosts[self.rank]",
    ],
)
@pytest.mark.parametrize("file", ["/job/fit.py", "torch/distributed/odd.py"])
def test_a_rank_beyond_a_list_is_of_another_group(file, code):
    diagnosis, decision = explain("IndexError: list index out of range", (file, "back", code))
    assert (diagnosis.cause, diagnosis.confidence, decision.action) == ("LG089", "likely", "change and retry")
    assert "smaller group" in diagnosis.title
    other, _ = explain("IndexError: list index out of range", (file, "back", "x = turns[i]"))
    assert "smaller group" not in other.title


@pytest.mark.parametrize(
    "what", ["has no attribute 'fetch'", "is not subscriptable", "is not callable", "is not iterable"]
)
def test_none_in_a_package_is_decided_by_its_release(what):
    error = f"TypeError: 'NoneType' object {what}"
    diagnosis, decision = explain(error, ("oddlib/core.py", "go", "x = self.thing.fetch[0]()"))
    assert (diagnosis.confidence, decision.action) == ("unknown", "change and retry")
    assert "another release of `oddlib`" in diagnosis.change
    assert explain(error, ("/job/fit.py", "go", "x = thing.fetch()"))[1].action == "stop"


@pytest.mark.parametrize(
    ("frames", "cause", "words"),
    [
        ([("deepspeed/ops/op_builder/builder.py", "jit_load", "load()"),
          ("torch/utils/file_baton.py", "wait", "time.sleep(1)")], "LG026", "file `lock` of a compiled op"),
        ([("torch/distributed/rendezvous.py", "_make_store", "return Store(host)")], "LG067", "at the rendezvous"),
        ([("torch/distributed/distributed_c10d.py", "init_process_group", "barrier()"),
          ("torch/distributed/distributed_c10d.py", "_store_based_barrier", "time.sleep(1)")], "LG067", "at the rendezvous"),
        ([("deepspeed/comm/torch.py", "all_gather_into_tensor", "return f(x)")], "LG069", "(`all_gather_into_tensor`)"),
        ([("torch/distributed/distributed_c10d.py", "barrier", "work.wait()")], "LG069", "(`barrier`)"),
        ([("torch/utils/data/dataloader.py", "_get_data", "q.get()")], "LG069", "its data loader"),
        ([("/job/net.py", "forward", "y = f(x)")], "LG069", "got a signal to stop"),
    ],
)  # fmt: skip
def test_where_an_interrupted_rank_stood_is_the_evidence(frames, cause, words):
    launcher = traceback_text(
        [("/opt/conda/bin/deepspeed", "<module>", "main()"),
         ("deepspeed/launcher/runner.py", "main", "result.wait()"),
         ("/opt/conda/lib/python3.11/subprocess.py", "wait", "return self._wait()")], "KeyboardInterrupt"
    )  # fmt: skip
    text = f"Main process received SIGINT, exiting\n{launcher}"
    ours = traceback_text([MAIN, *frames], "KeyboardInterrupt")
    of_rank = "".join(f"[rank2]: {line}\n" for line in ours.splitlines())
    for log in (text + ours, text + of_rank, "^C" + ours):
        diagnosis = diagnose_text(log)
        assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
        assert words in diagnosis.title
    assert diagnose_text(launcher).phase is None


@pytest.mark.parametrize(
    "error",
    [
        "PermissionError: [Errno 13] Permission denied: '/opt/cuda/bin/nvcc'",
        "NotADirectoryError: [Errno 20] Not a directory: '/opt/cuda.run/bin/nvcc'",
        "subprocess.CalledProcessError: Command '['/opt/cuda/bin/nvcc', '-V']' returned non-zero exit status 1.",
    ],
)
def test_a_toolkit_that_does_not_answer(error):
    frames = [("deepspeed/ops/op_builder/odd.py", "is_compatible", "x()"),
              ("deepspeed/ops/op_builder/builder.py", "installed_cuda_version", "out = check_output()"),
              ("/opt/conda/lib/python3.11/subprocess.py", "run", "raise it")]  # fmt: skip
    diagnosis, decision = explain(error, *frames)
    assert (diagnosis.cause, "CUDA_HOME" in diagnosis.change) == ("LG021", True)
    assert decision.action == "change and retry"


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("awq/models/odd.py", "ValueError: weight is on the meta device, we need a `value` to put in on 3."),
        ("gptqmodel/odd.py", "RuntimeError: The size of tensor a (0) must match the size of tensor b (8)"),
        ("transformers/quantizers/odd.py", "TypeError: partition() got a dtype of int32"),
    ],
)
def test_a_quantized_model_below_zero_init(file, error):
    below = ("deepspeed/runtime/zero/partition_parameters.py", "wrapper", "f(module, *args, **kwargs)")
    for frames in ([(file, "load", "build()"), below], [below, (file, "load", "build()")]):
        diagnosis, _ = explain(error, *frames)
        assert (diagnosis.cause, "below `zero.Init`" in diagnosis.title) == ("LG198", True)
    assert explain(error, (file, "load", "build()"))[0].title != diagnosis.title


@pytest.mark.parametrize(
    ("missing", "unexpected", "words"),
    [
        ("a.w", "module.a.w", "checkpoint's names begin with `module.`"),
        ("b.0.w", "base_model.model.b.0.w", "checkpoint's names begin with `base_model.model.`"),
        ("model.c.w", "c.w", "model's names begin with `model.`"),
    ],
)
def test_names_of_weights_that_differ_by_their_beginning(missing, unexpected, words):
    error = (
        f'RuntimeError: Error(s) in loading state_dict for Odd:\n\tMissing key(s) in state_dict: "x.y", "{missing}". \n'
        f'\tUnexpected key(s) in state_dict: "{unexpected}", "q.r". '
    )
    diagnosis = diagnose_text(error + "\n")
    assert (diagnosis.cause, words in diagnosis.title) == ("LG031", True)
    assert "begin with" not in diagnose_text(error.replace(f'"{unexpected}"', '"z.z"') + "\n").title


@pytest.mark.parametrize("name", ["prepare_deepspeed", "make_ref_model", "critic"])
def test_the_settings_of_a_second_model(name):
    frames = [("oddlib/ppo.py", name, "engine, *_ = deepspeed.initialize(model=m, config=c)"),
              ("deepspeed/runtime/config.py", "_set_sizes", "batch //= self.world_size")]  # fmt: skip
    diagnosis, _ = explain("TypeError: unsupported operand type(s) for //=: 'str' and 'int'", *frames)
    assert (diagnosis.cause, "of a second model" in diagnosis.title) == ("SP006", True)
    own = [("/job/fit.py", "make", "engine, *_ = deepspeed.initialize(model=m, config=c)"), frames[1]]
    assert (
        "second model" not in explain("TypeError: unsupported operand type(s) for //=: 'str' and 'int'", *own)[0].title
    )


@pytest.mark.parametrize(
    "message",
    ["ring attention is not supported with packed rows", "odd kernels are incompatible with float32",
     "ulysses only supports one image a row"],
)  # fmt: skip
def test_what_a_package_refuses_is_said_in_its_words(message):
    diagnosis, decision = explain(
        f"ValueError: {message}", ("oddlib/core.py", "check", f'raise ValueError("{message}")')
    )
    assert (diagnosis.cause, diagnosis.confidence, decision.action) == ("LG291", "likely", "change and retry")
    assert message in diagnosis.title
    assert "newer release of `oddlib`" in diagnosis.change
    assert explain(f"ValueError: {message}", ("/job/fit.py", "check", "raise ValueError(text)"))[0].cause == ""


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("Loading an odd model requires oddpack (`pip install oddpack`) and more", "pip install oddpack"),
        ("oddpack not found, please run `pip install -U 'oddpack>=2'`", "oddpack>=2"),
        ("To use it you need to install odd: pip install odd[cuda]", "pip install odd[cuda"),
    ],
)
def test_the_command_that_an_import_error_names(text, command):
    diagnosis, _ = explain(f"ImportError: {text}", ("oddlib/io.py", "load", "check()"))
    assert diagnosis.cause in ("LG220", "LG227")
    assert command in diagnosis.change


@pytest.mark.parametrize("function", ["sigkill_handler", "signal_handler", "term_handler"])
@pytest.mark.parametrize(
    "error", ["NameError: name 'odd' is not defined", "OSError: odd", "TypeError: odd() takes no x"]
)
def test_an_exception_in_the_handler_of_a_signal_is_no_cause(function, error):
    frames = [("deepspeed/launcher/runner.py", "main", "result.wait()"),
              ("/opt/conda/lib/python3.11/subprocess.py", "wait", "return self._wait()"),
              ("deepspeed/launcher/runner.py", function, "odd(x)")]  # fmt: skip
    diagnosis, decision = explain(error, *frames)
    assert (diagnosis.cause, diagnosis.confidence, diagnosis.phase, decision.action) == (
        "LG069",
        "likely",
        None,
        "retry",
    )
    assert "Ctrl-C" in diagnosis.title
    by_hand = traceback_text([MAIN], "KeyboardInterrupt")
    assert explain(error, *frames, log=by_hand)[1].action == "stop"
    assert explain(error, ("/job/fit.py", function, "odd(x)"))[0].cause != "LG069"


@pytest.mark.parametrize(
    ("file", "function", "cause"),
    [
        ("deepspeed/runtime/zero/partitioned_param_coordinator.py", "fetch_sub_module", "LG101"),
        ("deepspeed/runtime/zero/parameter_offload.py", "_post_forward_module_hook", "LG101"),
        ("transformers/modeling_utils.py", "load_state_dict", "LG033"),
        ("safetensors/torch.py", "load_file", "LG033"),
        ("deepspeed/runtime/engine.py", "_load_zero_checkpoint", "LG032"),
        ("deepspeed/runtime/zero/stage3.py", "_restore_odd_states", "LG032"),
        ("deepspeed/runtime/zero/stage_1_and_2.py", "initialize_optimizer_states", "LG001"),
        ("deepspeed/runtime/engine.py", "_configure_distributed_model", "LG001"),
        ("torch/distributed/distributed_c10d.py", "all_gather_object", "LG210"),
        ("deepspeed/comm/comm.py", "broadcast", "LG210"),
    ],
)
def test_frames_alone_say_where_a_cut_log_ended(file, function, cause):
    text = traceback_text([MAIN, (file, function, "x = y(z)")], "").rstrip()
    for log in (text + "\n", text.partition("\n")[2] + "\n"):
        diagnosis = diagnose_text(log)
        assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
        assert f"`{function}`" in diagnosis.title
        assert "the exception is not in it" in diagnosis.title


@pytest.mark.parametrize("code", ["assert all_norms > 0.", "assert self.grad_norm(x) > 0", "assert norm != 0, 'odd'"])
def test_a_norm_that_is_asserted_to_be_above_0_is_nan_or_0(code):
    diagnosis, _ = explain("AssertionError", ("deepspeed/runtime/bf16_optimizer.py", "step", code))
    assert (diagnosis.cause, "NaN, or all of them are 0" in diagnosis.title) == ("LG048", True)
    assert (
        explain("AssertionError", ("deepspeed/runtime/bf16_optimizer.py", "step", "assert n == 4"))[0].cause == "LG149"
    )


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("odd/core/optimizer/optimizer.py", "RuntimeError: Expected 3 entries in state dict, but got 5."),
        ("oddlib/fused_optim.py", "KeyError: 'odd_step'"),
        ("oddlib/Optimizer.py", "ValueError: the state has groups of another kind"),
    ],
)
def test_a_state_that_an_optimizer_does_not_take(file, error):
    frames = [("/job/fit.py", "resume", "opt.optimizer.load_state_dict(saved)"), (file, "load_state_dict", "raise it")]
    diagnosis, _ = explain(error, *frames)
    assert (diagnosis.cause, diagnosis.confidence) == ("LG032", "likely")
    assert explain(error, (file, "step", "raise it"))[0].cause != "LG032"


@pytest.mark.parametrize(
    "message",
    ["odd length 4097 is not divisible by the odd degree 4", "heads must be a multiple of groups, got 7 and 2",
     "41 rows cannot be evenly divided by 3 stages"],
)  # fmt: skip
def test_two_numbers_that_do_not_divide(message):
    diagnosis, _ = explain(f"AssertionError: {message}", ("/job/fit.py", "check", "assert a % b == 0"))
    assert (diagnosis.cause, message in diagnosis.title) == ("LG290", True)


@pytest.mark.parametrize(
    ("error", "frames", "cause", "words"),
    [
        ("ImportError: cannot import name 'Odd' from 'pyramid.session'", [("apex/__init__.py", "<module>", "from . import amp")],
         "LG089", "not NVIDIA's"),
        ("AttributeError: 'Namespace' object has no attribute 'odd_config'", [("/job/fit.py", "go", "c = args.odd_config")],
         "LG065", "have no `odd_config`"),
        ("AttributeError: 'DataArguments' object has no attribute 'odd'", [("/job/fit.py", "go", "c = d.odd")],
         "LG065", "(`DataArguments`) have no `odd`"),
        ("json.decoder.JSONDecodeError: Extra data: line 4 column 2 (char 70)", [("deepspeed/runtime/config.py", "f", "load()")],
         "LG044", "not valid JSON (Extra data"),
        ("RuntimeError: Rank 5 successfully reached monitoredBarrier, but received errors while waiting for send/recv from "
         "rank 0. Please check", [("torch/distributed/c.py", "f", "g()")], "LG073", "waited in a barrier for rank 0"),
    ],
)  # fmt: skip
def test_more_kinds_by_words_and_place(error, frames, cause, words):
    diagnosis, _ = explain(error, *frames)
    assert (diagnosis.cause, diagnosis.confidence) == (cause, "likely")
    assert words in diagnosis.title


@pytest.mark.parametrize("frame", [("datasets/load.py", "read", "loads(x)"), ("pyarrow/json.py", "read", "loads(x)")])
def test_a_line_of_data_that_is_no_json_is_data(frame):
    diagnosis, _ = explain("json.decoder.JSONDecodeError: Extra data: line 4 column 2 (char 70)", frame)
    assert (diagnosis.cause, "DeepSpeed JSON" in diagnosis.change) == ("LG044", False)
