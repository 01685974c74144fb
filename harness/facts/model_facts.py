# SPDX-License-Identifier: Apache-2.0
"""The sizes of a causal language model, and the counts that follow: totals, active and multiplied parameters.

`harness.facts.model_lookup` finds them.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any, Concatenate, NamedTuple, ParamSpec, TypeVar

from harness.facts.model_parts import Layers, Parameter, Parameters

_P = ParamSpec("_P")
_T = TypeVar("_T")
_Model = TypeVar("_Model")


def once_a_model(
    function: Callable[Concatenate[_Model, _P], _T], of: Callable[..., Any] | None = None
) -> Callable[Concatenate[_Model, _P], _T]:
    """Keep what a function of a model returned for the last four models, by their identity: a search asks the same of
    thousands of settings. `of`: all of the other arguments that the result depends on, hashable; by default themselves.
    """
    recent: deque[tuple[_Model, dict[Any, _T]]] = deque(maxlen=4)

    @wraps(function)
    def answer(model: _Model, /, *args: _P.args, **named: _P.kwargs) -> _T:
        key = (args, *named.items()) if of is None else of(*args, **named)
        answers = next((answers for known, answers in tuple(recent) if known is model), None)
        if answers is None:
            recent.append((model, answers := {}))
        if key not in answers:
            answers[key] = function(model, *args, **named)
        return answers[key]

    return answer


class LatentAttention(NamedTuple):
    """Widths of latent attention (DeepSeek): low-rank queries (0: none) and keys, and the parts of a head."""

    queries: int
    keys: int
    plain: int
    rope: int
    value: int


class ModelFacts(NamedTuple):
    """Sizes of a causal language model. Counts in elements; `before`, `layers`, `after` in the model's own order.

    `intermediate` is the width of one expert where there are experts, `shared` that of the shared experts. `head_dim`
    is the mean of query and value width under latent attention. `built`: no formula for the family is here; the
    parameters are those of real modules that `transformers` built, or with `estimated` those of a Llama-like model of
    the same sizes. `counted_only`: a formula counts the parameters, and nothing of the family was run here.
    """

    family: str
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    tied: bool
    experts: int
    experts_per_token: int
    layer_path: str
    before: Parameters
    layers: Layers
    after: Parameters
    shared: int = 0
    latent: LatentAttention | None = None
    built: bool = False
    estimated: bool = False
    counted_only: bool = False
    attention_dropout: bool = False

    @property
    def num_layers(self) -> int:
        """Layers of the language model."""
        return len(self.layers)

    @property
    @once_a_model
    def largest_layer(self) -> Parameters:
        """The largest kind of layer."""
        return max(self.layers, key=_numel, default=())

    @property
    @once_a_model
    def num_parameters(self) -> int:
        """All elements; a tied head counts once."""
        return self._sum_over_layers(_numel) + _numel(self.before) + _numel(self.after)

    @property
    def largest_layer_parameters(self) -> int:
        """Elements of the largest layer."""
        return _numel(self.largest_layer)

    @property
    def embedding_parameters(self) -> int:
        """Elements of token and position embeddings and of an untied head."""
        return _numel(parameter for parameter in (*self.before, *self.after) if len(parameter.shape) == 2)

    @property
    def largest_parameter(self) -> int:
        """Elements of the largest single weight; transformers 5 keeps all experts of a layer in one."""
        return max(parameter.numel for parameter in (*self.before, *self.largest_layer, *self.after))

    @property
    def largest_module(self) -> int:
        """Elements of the largest module with weights of its own: what ZeRO-3 gathers at once. Experts are one."""
        return max(self.largest_parameter, _numel(_expert_parameters(self.largest_layer)))

    @property
    def largest_layer_module(self) -> int:
        """The same inside a layer: no embedding and no head."""
        layer = self.largest_layer
        return max((_numel(_expert_parameters(layer)), *(parameter.numel for parameter in layer)))

    @property
    def active_parameters(self) -> int:
        """Parameters that one token uses: `experts_per_token` of the `experts`, everything else in full."""
        if not self.experts:
            return self.num_parameters
        in_experts = self._sum_over_layers(lambda layer: _numel(_expert_parameters(layer)))
        return self.num_parameters - in_experts * (self.experts - self.experts_per_token) // self.experts

    @property
    @once_a_model
    def matmul_parameters(self) -> int:
        """Active parameters that are multiplied with: no vectors, nothing before the layers unless it is the head."""
        vectors = _numel_of_vectors((*self.before, *self.after)) + self._sum_over_layers(_numel_of_vectors)
        embedding = _numel(parameter for parameter in self.before if len(parameter.shape) > 1)
        embedding -= self.vocab * self.hidden if self.tied else 0
        return self.active_parameters - vectors - embedding

    def with_label_head(self, num_labels: int) -> ModelFacts:
        """The same layers with a head of so many outputs instead of one over the vocabulary."""
        norms = tuple(parameter for parameter in self.after if len(parameter.shape) == 1)
        head = Parameter("score.weight", (num_labels, self.hidden))
        return self._replace(vocab=num_labels, tied=False, after=(*norms, head))

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter with its full name, in the order of `model.named_parameters()`."""
        yield from self.before
        for index, layer in enumerate(self.layers):
            for parameter in layer:
                yield Parameter(f"{self.layer_path}.{index}.{parameter.name}", parameter.shape)
        yield from self.after

    def _sum_over_layers(self, count: Callable[[Parameters], int]) -> int:
        """A count summed over all layers; equal layers are counted once and multiplied."""
        num_alike = Counter(map(id, self.layers))
        kinds = {id(layer): layer for layer in self.layers}
        return sum(num_alike[key] * count(layer) for key, layer in kinds.items())


def _numel(parameters: Iterable[Parameter]) -> int:
    return sum(parameter.numel for parameter in parameters)


def _numel_of_vectors(parameters: Iterable[Parameter]) -> int:
    return _numel(parameter for parameter in parameters if len(parameter.shape) == 1)


def _expert_parameters(layer: Parameters) -> Parameters:
    return tuple(parameter for parameter in layer if ".experts." in parameter.name)
