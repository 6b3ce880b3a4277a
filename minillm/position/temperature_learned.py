"""Query temperatures with one learned number per query head, the parameter `scale` (H,).

It is trained with the rest, or alone: `train_only` with the pattern of its name fits it on a model whose other weights
stay as they are, as the authors of arXiv 2404.12224 do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import ConfigError
from minillm.position.base import LayerShape
from minillm.position.temperature import QueryScale, TemperatureScheme, register_temperature


@register_temperature("per_head")
@dataclass(frozen=True)
class PerHead(TemperatureScheme):
    """q of head h *= s_h: "HeadScale", lambda_h = s_h / sqrt(head_dim) (arXiv 2404.12224; AntNLP/nope_head_scale).

    The authors start at 1.6 with a lower bound of 1 and train nothing else; 1 changes nothing at the start.
    """

    init: float = 1.0
    """Where each s starts."""
    minimum: float | None = None
    """Lower bound of s. Where a step went below it, the bound is what the layer uses; only gradients that raise s
    then come through, so that it can leave the bound again as if each step had ended on it."""

    def validate(self, layer: LayerShape) -> None:
        if not self.init > 0:
            raise ConfigError(f"temperature.init = {self.init!r}: must be above 0.")
        if self.minimum is not None and not 0 < self.minimum <= self.init:
            raise ConfigError(
                f"temperature.minimum = {self.minimum!r}: must be above 0 and at most init = {self.init:g}, or null."
            )

    def make(self, layer: LayerShape) -> QueryScale:
        return ScaleByHead(layer.num_attention_heads, self.init, self.minimum)


class ScaleByHead(QueryScale):
    """Runtime of `PerHead`, in float32."""

    def __init__(self, num_heads: int, init: float, minimum: float | None) -> None:
        super().__init__()
        self.init, self.minimum = init, minimum
        self.scale = nn.Parameter(torch.empty(num_heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.scale, self.init)

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "1 H 1 1"]:
        scale = self.scale.float()
        if self.minimum is not None:
            scale = _Bounded.apply(scale, self.minimum)
        return scale[None, :, None, None]


class _Bounded(torch.autograd.Function):
    """max(x, minimum). A plain clamp lets no gradient through below the bound, so what fell there would stay."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, minimum: float) -> Tensor:
        ctx.save_for_backward(x > minimum)
        return x.clamp(min=minimum)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (free,) = gradients, ctx.saved_tensors
        return torch.where(free | (gradient < 0), gradient, 0.0), None


@register_temperature("ssmax")
@dataclass(frozen=True)
class SSMax(TemperatureScheme):
    """q of head h *= s_h * ln(n), n = position + 1: Scalable-Softmax, n ** (s z) in place of e ** z (arXiv 2501.19399).

    n is the number of tokens of the document so far, on windowed layers too. At n = 1 the factor is 0: that query sees
    its own key alone, whose weight is 1 whatever the factor is (unless a learned sink takes part). `init` is 1 over the
    mean of ln(n) for n = 1..1024, the paper's training length, so that the mean factor there is 1; for a trained length
    L that is about 1 / (ln L - 1).
    """

    init: float = 0.168
    """Where each s starts."""

    def validate(self, layer: LayerShape) -> None:
        if not self.init > 0:
            raise ConfigError(f"temperature.init = {self.init!r}: must be above 0.")

    def make(self, layer: LayerShape) -> QueryScale:
        return ScaleByLogLength(layer.num_attention_heads, self.init)


class ScaleByLogLength(QueryScale):
    """Runtime of `SSMax`, in float32."""

    def __init__(self, num_heads: int, init: float) -> None:
        super().__init__()
        self.init = init
        self.log_scale = nn.Parameter(torch.empty(num_heads))  # not `scale`: weights of per_head mean something else
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.log_scale, self.init)

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B H T 1"]:
        return self.log_scale.float()[None, :, None, None] * torch.log1p(position.float())[:, None, :, None]
