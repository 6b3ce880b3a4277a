"""One layer's attention: project, normalise, rotate, look up the cache, attend, project back.

What the layer does is read from its `LayerSpec` when it is built; nothing here knows the name of a scheme.
Shapes: B batch, T tokens, D hidden width, H query heads, G key-value heads, K head width.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from minillm.attention.backends import attend, check
from minillm.attention.cache import LayerCache
from minillm.attention.tokens import StepContext
from minillm.config.layers import LayerSpec
from minillm.config.schema import Backend, BlockConfig
from minillm.model.norms import HeadNorm
from minillm.model.shared_qk import SharedQK
from minillm.position.base import LayerPosition, Rotary


class Attention(nn.Module):
    """Softmax attention as one `LayerSpec` declares it."""

    def __init__(
        self,
        spec: LayerSpec,
        hidden_size: int,
        block: BlockConfig,
        position: LayerPosition | None,
        backend: Backend = "auto",
    ) -> None:
        """`position` is what `spec.position.make` gives; one that layers share is registered by its owner, not here."""
        super().__init__()
        check(backend, spec)
        self.spec, self.backend = spec, backend
        q_width, kv_width = spec.num_attention_heads * spec.head_dim, spec.num_key_value_heads * spec.head_dim
        self.widths = (kv_width, kv_width) if spec.shared_qk else (q_width, kv_width, kv_width)
        self.qkv_proj = nn.Linear(hidden_size, sum(self.widths), bias=spec.qkv_bias)
        self.shared_qk = SharedQK(spec) if spec.shared_qk else None
        self.gate_proj = nn.Linear(hidden_size, q_width, bias=False) if spec.gate else None
        self.o_proj = nn.Linear(q_width, hidden_size, bias=block.attention_bias)
        self.sinks = nn.Parameter(torch.empty(spec.num_attention_heads)) if spec.sink_logits else None
        if spec.position.shared:
            object.__setattr__(self, "position", position)  # past nn.Module, which would register it
        else:
            self.position = position
        self.temperature = None if spec.temperature is None else spec.temperature.make(spec.shape)
        self.q_norm = self.k_norm = None
        if spec.qk_norm is not None:
            self.q_norm = HeadNorm(spec.qk_norm, spec.num_attention_heads, spec.head_dim, block)
            self.k_norm = HeadNorm(spec.qk_norm, spec.num_key_value_heads, spec.head_dim, block)

    def project(
        self, x: Float[Tensor, "B T D"], context: StepContext
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]]:
        """Queries, keys and values as they meet in the scores: normalised, rotated, queries scaled by temperature."""
        return self.qkv(x, *self.inputs(context))

    def inputs(self, context: StepContext) -> tuple[Rotary | None, Tensor | None]:
        """What `qkv` needs of where the tokens stand: rotary tables and the queries' factor, shared by equal layers."""
        rotary = None if self.position is None else self.position.rotary(context, context.tokens)
        if self.temperature is None:
            return rotary, None
        factor = context.once(
            (self.spec.temperature, self.spec.num_attention_heads) if self._shared_temperature else self,
            lambda: self.temperature(context.tokens.position),  # type: ignore[misc]
        )
        return rotary, factor

    def qkv(
        self, x: Float[Tensor, "B T D"], rotary: Rotary | None, factor: Tensor | None
    ) -> tuple[Float[Tensor, "B H T K"], Float[Tensor, "B G T K"], Float[Tensor, "B G T K"]]:
        """`project` from tensors alone: what can be compiled."""
        parts = [
            part.unflatten(-1, (-1, self.spec.head_dim)).transpose(1, 2)
            for part in self.qkv_proj(x).split(self.widths, dim=-1)
        ]
        q, k = parts[:2] if self.shared_qk is None else self.shared_qk(parts[0])
        v = parts[-1]
        norm_last = self.spec.qk_norm is not None and self.spec.qk_norm.order == "after_rope"
        if not norm_last:
            q, k = self._norm(q, k)
        if rotary is not None:
            assert self.position is not None
            q, k = self.position.rotate(q, rotary), self.position.rotate(k, rotary)
        if norm_last:
            q, k = self._norm(q, k)
        if factor is not None:
            q = (q * factor).to(q.dtype)
        return q, k, v

    def attend(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B G T K"],
        v: Float[Tensor, "B G T K"],
        context: StepContext,
        cache: LayerCache | None = None,
    ) -> Float[Tensor, "B H T K"]:
        """The weighted sums of values, over the cache's keys and these."""
        keys, spec = context.tokens, self.spec
        if cache is not None:
            spec = cache.spec  # what is seen may be less, where the cache forgets
            k, v, keys = cache.append(k, v, context.tokens)
        return attend(
            q, k, v, spec, queries=context.tokens, keys=keys, context=context, position=self.position,
            sinks=self.sinks, backend=self.backend,
        )  # fmt: skip

    def output(self, x: Float[Tensor, "B T D"], attended: Float[Tensor, "B H T K"]) -> Float[Tensor, "B T D"]:
        """Gate the heads by the layer's input where the plan says so, and project back."""
        out = attended.transpose(1, 2).flatten(2)
        if self.gate_proj is not None:
            out = out * self.gate_proj(x).sigmoid()
        return self.o_proj(out)

    def forward(
        self, x: Float[Tensor, "B T D"], context: StepContext, cache: LayerCache | None = None
    ) -> Float[Tensor, "B T D"]:
        return self.output(x, self.attend(*self.project(x, context), context, cache))

    def reset_parameters(self) -> None:
        """The parameters that stand here alone: sinks begin at 0, like one more key of score 0 (Granite)."""
        if self.sinks is not None:
            nn.init.zeros_(self.sinks)

    @property
    def _shared_temperature(self) -> bool:
        """A temperature without parameters is the same in all layers of an equal spec."""
        return next(self.temperature.parameters(), None) is None  # type: ignore[union-attr]

    def _norm(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        if self.q_norm is None or self.k_norm is None:
            return q, k
        return self.q_norm(q), self.k_norm(k)
