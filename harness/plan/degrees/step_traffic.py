# SPDX-License-Identifier: Apache-2.0
"""Traffic of one GPU of a pipeline stage in one step, by purpose, group and link. Bytes that the GPU sends."""

from __future__ import annotations

from dataclasses import dataclass

from harness.facts.model_lookup import ModelFacts
from harness.plan.degrees.degrees_request import DegreesRequest
from harness.plan.degrees.gpu_work import CollectiveKind, GroupKind, Traffic, Window
from harness.plan.degrees.local_matrices import LocalNumel, is_expert
from harness.plan.degrees.rank_groups import StageLayers


@dataclass(frozen=True, slots=True)
class _TrafficOfStage:
    model: ModelFacts
    stage: StageLayers
    request: DegreesRequest
    parameters: LocalNumel
    expert_hosts: int

    @property
    def _tokens(self) -> float:
        """Of a micro-batch on a context rank."""
        return self.request.micro_batch * self.request.seq_length / self.request.degrees.context

    @property
    def _layers(self) -> float:
        """Layer passes a step: every rank of DualPipe does half of the micro-batches in each of its two chunks."""
        shared = 2 if self.request.degrees.schedule == "dualpipe" and self.request.degrees.pipeline > 1 else 1
        return len(self.stage.layers) / shared

    def ring(
        self,
        purpose: str,
        kind: CollectiveKind,
        group: GroupKind,
        payload: float,
        calls: float,
        window: Window = "none",
    ) -> Traffic:
        """A ring sends payload x (N - 1) / N, an all-reduce twice that; the network's cards of a host share it."""
        ranks, inside = self.request.degrees.group(group)
        wire = payload * (ranks - 1) / ranks * (2 if kind == "all-reduce" else 1)
        network = 0.0 if inside >= ranks else wire / inside
        return Traffic(
            purpose, group, kind, ranks, inside, payload, wire if inside > 1 else 0.0, network, round(calls), window
        )

    def tensor(self) -> list[Traffic]:
        """Two all-reduces of the hidden states forward and two backward a layer (arXiv 1909.08053), two more where a
        layer is recomputed. With sequence parallelism each is a reduce-scatter and an all-gather, of the same bytes in
        sum, and backward gathers the two inputs of column-divided products once more (arXiv 2205.05198, section 4.2.2).
        The embedding and the head have one each, forward and backward.
        """
        request = self.request
        if request.degrees.tensor == 1:
            return []
        hidden = self._tokens * self.model.hidden * request.element_bytes
        dense_blocks = 2 * self._layers
        if request.degrees.expert > 1:  # experts have groups of their own: the MLP block is none of the tensor group's
            dense_blocks -= sum(map(self._is_moe, self.stage.layers)) / (len(self.stage.layers) or 1) * self._layers
        passes = dense_blocks * (3 if request.checkpointing == "full" else 2)
        passes += 2 * (self.stage.has_embedding + self.stage.has_head)
        calls = passes * request.micro_batches
        if not request.degrees.sequence:
            return [self.ring("tensor all-reduce", "all-reduce", "tensor", hidden * calls, calls)]
        again = dense_blocks * request.micro_batches
        return [
            self.ring("tensor reduce-scatter", "reduce-scatter", "tensor", hidden * calls, calls),
            self.ring("tensor all-gather", "all-gather", "tensor", hidden * calls, calls),
            self.ring("tensor all-gather, weights", "all-gather", "tensor", hidden * again, again, "layer"),
        ]

    def _is_moe(self, index: int) -> bool:
        return any(is_expert(parameter) for parameter in self.model.layers[index])

    def context(self) -> list[Traffic]:
        """Keys and values around the ring: once forward, and backward once more with their gradients."""
        request, degrees = self.request, self.request.degrees
        if degrees.context == 1:
            return []
        latent = self.model.latent
        if latent is None:
            width = 2.0 * self.model.kv_heads * self.model.head_dim
        else:
            width = self.model.heads * float(latent.plain + latent.rope + latent.value)
        local = self._tokens * width / degrees.tensor * request.element_bytes
        passes = 4 if request.checkpointing == "full" else 3
        calls = self._layers * request.micro_batches * passes
        payload = local * degrees.context * calls
        return [self.ring("context ring", "ring", "context", payload, calls * (degrees.context - 1), "layer")]

    def expert(self) -> list[Traffic]:
        """Tokens to their experts and back, forward and backward: K copies of a token's hidden state.

        A copy to another host passes the network; where the router limits a token to a few hosts, one copy a host does,
        which the links hand on (DeepSeek-V3, section 3.2.2). FP8 dispatches forward in FP8 and combines in 16 bits.
        """
        request, degrees = self.request, self.request.degrees
        moe_layers = sum(map(self._is_moe, self.stage.layers))
        if degrees.expert == 1 or not moe_layers:
            return []
        share = self._layers / len(self.stage.layers)
        ranks, inside = degrees.group("expert")
        copies, hosts = self.model.experts_per_token, -(-ranks // inside)
        to_others = copies * (ranks - inside) / ranks
        if self.expert_hosts and hosts > 1:
            to_others = min(to_others, min(self.expert_hosts, hosts) * (hosts - 1) / hosts)
            on_links = copies * (inside - 1) / inside
        else:
            on_links = copies * (inside - 1) / ranks
        tokens = self._tokens / degrees.tensor * self.model.hidden * request.micro_batches * moe_layers * share
        calls = round(moe_layers * share * request.micro_batches)
        again = 2 if request.checkpointing == "full" else 1
        width = request.element_bytes
        window: Window = "step" if degrees.schedule == "dualpipe" else "none"
        dispatch = (1 if request.precision == "fp8" else width) * again + width
        return [
            Traffic(
                f"expert {name}",
                "expert",
                "all-to-all",
                ranks,
                inside,
                tokens * each * copies,
                tokens * each * on_links,
                tokens * each * to_others,
                calls * (again + 1),
                window,
            )
            for name, each in (("dispatch", dispatch), ("combine", width * (again + 1)))
        ]

    def pipeline(self) -> list[Traffic]:
        """Hidden states forward and their gradients backward, each micro-batch and chunk; every rank of a tensor group
        sends its part (arXiv 2104.04473, section 4.1). Of the stages in several hosts, one at a border sets the pace.
        """
        request, degrees = self.request, self.request.degrees
        if degrees.pipeline == 1:
            return []
        ranks, inside = degrees.group("pipeline")
        calls = 2 * request.micro_batches * degrees.virtual_stages
        payload = calls * self._tokens * self.model.hidden * request.element_bytes / degrees.tensor
        link, network = (payload, 0.0) if inside >= ranks else (0.0, payload)
        window: Window = "step" if degrees.schedule in ("interleaved", "dualpipe") else "none"
        return [Traffic("pipeline messages", "pipeline", "send", ranks, inside, payload, link, network, calls, window)]

    def data(self) -> list[Traffic]:
        """Gradients in fp32 once a step (in every micro-batch from ZeRO-2 on), and the stepped parameters; at stage 3
        parameters in forward and backward of every micro-batch. Experts over their own group.
        """
        request, degrees, recipe = self.request, self.request.degrees, self.request.recipe
        traffic = []
        width = 1 if request.precision == "fp8" else recipe.parameters
        times = request.micro_batches if request.zero_stage >= 2 else 1
        gathers = {0: 0, 1: 1, 2: 1, 3: 2 * request.micro_batches}[request.zero_stage]
        for name, group, numel in (
            ("", "data", self.parameters.dense),
            ("expert ", "expert data", self.parameters.experts),
        ):
            size: int = degrees.group(group)[0]  # type: ignore[arg-type]
            if size == 1 or not numel:
                continue
            kind: CollectiveKind = "all-reduce" if request.zero_stage == 0 else "reduce-scatter"
            gradients = float((request.reduced_bytes or recipe.gradients) * numel * times)
            window: Window = "step" if request.zero_stage >= 2 else "backward"
            traffic.append(self.ring(f"{name}gradients", kind, group, gradients, times, window))  # type: ignore[arg-type]
            if gathers:
                payload = float(width * numel * gathers)
                traffic.append(
                    self.ring(f"{name}parameters", "all-gather", group, payload, gathers, window)  # type: ignore[arg-type]
                )
        return traffic


def stage_traffic(
    model: ModelFacts, stage: StageLayers, request: DegreesRequest, parameters: LocalNumel, expert_hosts: int = 0
) -> tuple[Traffic, ...]:
    """All traffic of one GPU of the stage. `expert_hosts`: hosts that a token's experts lie on at most, 0 for any."""
    of_stage = _TrafficOfStage(model, stage, request, parameters, expert_hosts)
    inside = (*of_stage.tensor(), *of_stage.context(), *of_stage.expert())
    return tuple(each for each in (*inside, *of_stage.pipeline(), *of_stage.data()) if each.payload)
