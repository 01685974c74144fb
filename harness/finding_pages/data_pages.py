# SPDX-License-Identifier: Apache-2.0
"""Model, data, optimizer and schedule, as the ranks see them. Pages of findings, read by `harness.finding_pages`."""

TEXT = """
## MD101 vocabulary-too-small
The tokenizer has ids without an embedding in the model.

## MD102 model-not-loaded
`transformers` could not build the model or load its weights.

## MD103 tokenizer-not-loaded
No tokenizer is named, or it could not be loaded.

## MD111 no-such-data
No file matches, or a file cannot be read.

## MD112 no-such-column
The data has no column of that name, or a row has a value other than text there.

## MD113 data-not-utf-8
A text file is not UTF-8.

## MD114 empty-data
The data has no text.

## MD115 too-little-data
The text does not fill one global batch, or the held-out part does not fill one sequence.

## MD116 data-set-not-read
The `datasets` library could not read the file, or the Hub could not be reached. Or the file would take more memory than
64 MiB and a hundred times its size, a column is of a type whose values share memory, or the `README.md` of a folder
names data outside of it.

## MD117 data-not-named
`data.train` is not set.

## MD118 unknown-kind-of-data
The extension of a file is unknown, or there is no built-in text of this name.

## MD119 hosts-read-different-text
The hosts found different training text under the same name.

## MD120 bad-json
A line of JSON Lines, an element of a JSON list or a row of a CSV file cannot be read.

The message has the file and line. In a truncated JSON list the next element cannot be found, so it ends the
preparation whatever `data.on_bad_record` is.

## MD121 empty-record
A text, a completion or an assistant turn is empty.

## MD122 record-too-long
A record has more tokens than `data.max_length`, and `data.excess_length_strategy` is `raise`.

## MD123 turns-not-usable
A chat has no turns, none of the assistant, or turns in an order that the tokenizer's chat template refuses.

## MD124 nothing-to-train-on
The loss mask of the record has no token: the prompt alone fills `data.max_length`, so that the answer is cut off.

## MD125 too-many-bad-records
More records than `data.max_bad_records` cannot be used.

With `data.on_bad_record: skip`, such records are skipped, counted by kind, and listed in `skipped.jsonl` next to the
tokens. A number above the limit suggests a common cause, such as a wrong column name.

## MD126 answers-not-found
The assistant's tokens of a chat cannot be located.

A chat template with `{% generation %}` marks them. For any other template the harness renders prefixes of the chat,
turn by turn, and takes the text that a turn adds. That fails if the template renders earlier turns differently once
others follow, for example without their reasoning. A guess would silently train on the wrong tokens.

## MD127 no-chat-template
The data has chats, and neither the tokenizer nor `data.chat_template` has a chat template.

## MD128 packed-rows-see-each-other
In a packed row the model would attend to earlier documents, or its layers do not get the document boundaries: attention
in chunks, or a family that was not compared. The pages of the gates MD020 and MD024 explain this.

The ranks ask a small copy of the model itself where no table has its type: the logits of a document must not change
with the document before it in the row, and must be those that it has alone.

## MD129 cache-not-usable
The cache folder for prepared data cannot be created or written.

## MD130 columns-not-used
Records have text in columns that their format does not read, such as `system` and `history` next to `instruction`.

Other programs make turns of them. The run continues without this text, so the model would not see the system prompt or
the earlier turns. The columns of each format are in docs/data.md.

## MD150 weights-missing
The folder of `model.name_or_path` lacks weights of the model. `transformers` would initialise them at random, with a
warning, and training would start from a model that is partly noise.

## MD151 weights-of-another-shape
The shapes of the stored tensors do not match `config.json`.

## MD152 pattern-that-fits-nothing
A pattern of `model.freeze` or `model.train_only` fits no parameter of the model, or a name in
`model.lora.target_modules` no module, so other parameters would be trained than intended. Patterns are globs over whole
names; `*` stands for any text, dots included. Targets are ends of names, as `peft` compares them; if one of several
fits nothing, `peft` silently adapts only the others.

## MD153 nothing-to-train
Every parameter is frozen.

## MD154 peft-missing
`model.lora` needs the package `peft`, which is not installed where the ranks run.

## MD155 adapters-not-possible
`peft` refuses `model.lora` for this model: most often `target_modules` names none of its modules, or is missing for a
model type without default targets in `peft`.

If the model's configuration is on this machine and its family is known to the plan and has no experts, the targets are
compared with the names of its modules before a launch. A name that fits none, next to others that do, is a warning:
`peft` silently ignores it.

## MD156 no-recomputation
The model's class has no layers that `transformers` can recompute in the backward pass.

## MD157 code-not-allowed
`plugins.file` names code, or `model.trust_remote_code` lets `transformers` run the Python files of a model. Either runs
only if you allow it with `--allow-local-code` of `launch`, `tune`, `rehearse` or `data`, which prints what it allows.
The ranks get the sha256 of the plug-in's file; one that was changed since, or differs on another host, is refused too.

## MD158 plug-in-not-usable
The file of `plugins.file` cannot be read, fails when it is run, or defines none of the known functions; or one of
them returns a wrong type.

## MD159 compiler-backend
torch has no compiler backend of that name, or DeepCompile cannot be used on this kind of device.

## MD160 kept-attention-with-dropout
`train.gradient_checkpointing.keep` cannot keep attention with dropout. The recomputation would skip it and its random
numbers, so later dropouts of the layer would draw other numbers than in the forward pass, and the gradients would be
wrong.

## MD161 mlp-tiles-not-possible
No layer of the model has a dense MLP of the name `mlp` that `train.mlp_tile_size` could run in tiles. Experts get the
tokens that a router sends them, not tiles of the sequence.

## MD162 bitsandbytes-missing
`model.quantization` needs the package `bitsandbytes`, which is not installed where the ranks run.

## MD163 nothing-to-quantize
`model.quantization` fits no layer of the model: bitsandbytes quantizes linear layers, and the stacked weights of
experts are not linear layers.

## MD164 not-a-causal-model
The model is not one that can be trained to predict the next token. In an encoder such as BERT each position sees the
token that it should predict: the loss falls far below that of a language model, and nothing is learnt. T5 and other
encoder-decoders, and models of images, have no class under `AutoModelForCausalLM`.

The types of the table of models (`docs/models.md`) are known. Any other is asked: a child process builds a small copy
of the configuration with the installed `transformers`, with random weights, changes the tokens from one position on,
and looks at the logits before it. No name decides, so that BERT with `is_decoder: true` passes. The answer is kept
below XDG_CACHE_HOME (else `~/.cache`) for the configuration, the releases and the source of the model's class.
A model that is not known, because `transformers` is not installed or cannot build it, is a warning; the ranks ask
again before they train, also a model with its own code.

## MD165 parts-left-behind
`AutoModelForCausalLM` builds the text part alone of some models with towers for images or sound, such as Qwen3.5 and
Llama 4. An export of such a run takes the other tensors from the files of `model.name_or_path`, as they are, and puts
trained ones under the names that they have there. These files must be safetensors, and hold every trained tensor as it
is: weights that `transformers` merges or splits when it loads them have no such name.

## MD166 part-of-the-layers
`all-linear` gives no adapter to some matrices of the model's layers, or 4-bit weights leave some in 16 bits, as a small
copy of the model has shown; the notes name them. `peft` 0.19 adapts fused experts in place of all modules of the
experts' names, so that the dense MLPs and shared experts of DeepSeek V3 and GLM-4.5 get no adapter, without a warning.
bitsandbytes quantizes linear layers alone, and fused experts are none.

## MD167 weights-not-loaded
A small copy of the model was saved with `save_pretrained` and loaded again, by the loader of this program at ZeRO-3,
else by `AutoModelForCausalLM` and the class that its `config.json` names. Some tensors were missing, left over or
others than those in the file: training would start from random values there.

## MD168 layers-recompute-otherwise
Loss or gradients of a small copy of the model with activation checkpointing are not those without it, or `transformers`
cannot recompute its layers.

## OP101 no-optimizer
The rendered DeepSpeed JSON has no optimizer.

## OP110 decay-that-does-not-fit
Warm-up and decay of `warmup_stable_decay` take more steps than the run has.

## OP111 step-that-is-not-a-number
The loss or the gradient of a step has a NaN or an infinity, and `train.on_nonfinite` is `stop`. The step changed no
weight. Rows are numbered in the order of `train.seed`; with `checkpoint.save_at_end` the run is saved,
and a resume continues after them.

## OP112 too-many-skipped-steps
As many steps had a NaN or an infinity as `train.max_skipped_steps` or `train.max_consecutive_skipped_steps` allows.

## OP113 weights-that-are-not-numbers
A step was taken although its loss or gradient is NaN or infinite, which happens only if DeepSpeed's own check is off.
The loss of a step is read where it is logged, and with the gradient norm before each save. A resume starts from the
last checkpoint, which is of an earlier step.

## OP120 disk-not-measured
`harness doctor --tune-nvme` could not measure the disk: no free space, no DeepSpeed, or its `async_io` does not build.
"""
