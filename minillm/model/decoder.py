"""The decoder-only model that a layer plan describes.

    model = build_model(cfg.model, seed=0)
    logits = model(tokens)                                  # (B, T) -> (B, T, V) float32
    cache = model.new_cache(batch_size=1); model(prompt, cache=cache); model(next_token, cache=cache)

There are no buffers: rotary tables and masks are computed from positions in each call and shared by layers of equal
specs, so a model may be built on the meta device, materialised, sharded or moved without anything to refill.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Sequence
from typing import Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.attention.cache import KVCache
from minillm.attention.cache_settings import CacheSettings
from minillm.attention.tokens import StepContext, arrange
from minillm.config.layers import LayerSpec
from minillm.config.schema import ModelConfig
from minillm.model.block import Block
from minillm.model.init import init_weights
from minillm.model.loss import linear_cross_entropy, scale_logits
from minillm.model.norms import block_norm
from minillm.position.base import LayerPosition


class Decoder(nn.Module):
    """Token embedding, one `Block` per `LayerSpec`, a last norm, a head (the embedding itself where tied)."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        block = config.block
        # Not nn.Embedding(...): what it draws is drawn again below, and on the meta device costs 2 s of imports.
        table = torch.empty(config.vocab_size, config.hidden_size)
        self.embed_tokens = nn.Embedding.from_pretrained(table, freeze=False)
        self.embed_positions: nn.Module | None = None
        if config.embedding_position is not None:
            self.embed_positions = config.embedding_position.make_embedding(
                config.hidden_size, config.max_position_embeddings
            )
        self.embed_norm = block_norm(block, config.hidden_size) if block.embedding_norm else None
        # What several layers share stands here, once: registered in two blocks it would be twice in the state dict.
        self.shared_positions = nn.ModuleDict()
        blocks = []
        for spec in config.layers:
            position = spec.position.make(spec.shape)
            if position is not None and spec.position.shared:
                name = shared_name(spec)
                if name not in self.shared_positions:
                    self.shared_positions[name] = position
                position = cast(LayerPosition, self.shared_positions[name])
            blocks.append(Block(spec, config, position))
        self.layers = nn.ModuleList(blocks)
        # In the post-norm form each block ends with a norm, so there is none left to add.
        self.norm = nn.Identity() if block.norm_placement == "post" else block_norm(block, config.hidden_size)
        self.lm_head = None
        if not block.tie_word_embeddings:
            self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    @property
    def layer_specs(self) -> tuple[LayerSpec, ...]:
        return self.config.layers

    @property
    def head_weight(self) -> Tensor:
        """(V, D): what turns hidden states into logits."""
        return self.embed_tokens.weight if self.lm_head is None else self.lm_head.weight

    def forward(
        self,
        tokens: Int[Tensor, "B T"],
        document_ids: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T V"]:
        """Logits in float32.

        Args:
            tokens: ids.
            document_ids: which packed document a token belongs to, -1 for padding; documents do not see each other.
                A document is one unbroken run of its id: an id must not come back later in the row.
            positions: default 0..T-1, restarting with each document, going on from the cache.
            cache: what earlier calls have seen; extended in place.
        """
        return self.logits(self.hidden(tokens, document_ids, positions, cache))

    def hidden(
        self,
        tokens: Int[Tensor, "B T"],
        document_ids: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        cache: KVCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Hidden states after the last norm; arguments as in `forward`."""
        batch, length = tokens.shape
        if cache is not None and len(sizes := cache.pieces(length)) > 1:
            return self._in_pieces(sizes, tokens, document_ids, positions, cache)
        past = None if cache is None else cache.past
        placed = arrange(batch, length, tokens.device, document_ids, positions, past)
        context = StepContext(placed, contiguous=past is None or past.seen == 0, past=past)
        x = self.embed(tokens, placed.position)
        for index, layer in enumerate(self.layers):
            x = layer(x, context, None if cache is None else cache.layers[index])
        if cache is not None:
            cache.advance(placed)
        return self.norm(x)

    def _in_pieces(
        self,
        sizes: Sequence[int],
        tokens: Int[Tensor, "B T"],
        document_ids: Int[Tensor, "B T"] | None,
        positions: Int[Tensor, "#B T"] | None,
        cache: KVCache,
    ) -> Float[Tensor, "B T D"]:
        """`hidden` of one piece of the text after another."""
        parts = tokens.split(list(sizes), dim=-1)
        ids = [None] * len(sizes) if document_ids is None else document_ids.split(list(sizes), dim=-1)
        places = [None] * len(sizes) if positions is None else positions.split(list(sizes), dim=-1)
        return torch.cat([self.hidden(*part, cache) for part in zip(parts, ids, places, strict=True)], dim=1)

    def embed(self, tokens: Int[Tensor, "B T"], position: Int[Tensor, "#B T"]) -> Float[Tensor, "B T D"]:
        """Token embeddings, scaled, plus position embeddings where the plan has them, normed where the block says."""
        x = self.embed_tokens(tokens)
        scale = self.config.block.embedding_scale
        if scale is not None:
            factor = math.sqrt(self.config.hidden_size) if scale == "sqrt_hidden" else scale
            # Rounded to the weights' dtype first, as Gemma does: in bfloat16 sqrt(640) is 25.25.
            x = x * torch.tensor(factor, dtype=x.dtype, device=x.device)
        if self.embed_positions is not None:
            x = x + self.embed_positions(position).to(x.dtype)
        return x if self.embed_norm is None else self.embed_norm(x)

    def logits(self, hidden: Float[Tensor, "B T D"]) -> Float[Tensor, "B T V"]:
        raw = F.linear(hidden, self.head_weight).float()
        return scale_logits(raw, self.config.block.logit_scale, self.config.block.final_logit_softcapping)

    def loss(
        self,
        tokens: Int[Tensor, "B T"],
        targets: Int[Tensor, "B T"],
        document_ids: Int[Tensor, "B T"] | None = None,
        positions: Int[Tensor, "B T"] | None = None,
        reduction: Literal["mean", "sum"] = "mean",
    ) -> Float[Tensor, ""]:
        """Cross-entropy in nats over the targets that are not -100, without holding full logits.

        `targets[b, t]` is the token that follows `tokens[b, t]`: labels are shifted by the caller, once.
        """
        hidden = self.hidden(tokens, document_ids, positions)
        return linear_cross_entropy(
            hidden.flatten(0, 1),
            self.head_weight,
            targets.flatten(),
            self.config.block.logit_scale,
            self.config.block.final_logit_softcapping,
            reduction,
        )

    def new_cache(self, batch_size: int, settings: CacheSettings = CacheSettings()) -> KVCache:  # noqa: B008  # frozen
        """An empty cache in the dtype and on the device of the weights; `settings` may ask for fewer bits or less
        memory of the past, which changes logits (attention/cache_settings.py)."""
        weight = self.embed_tokens.weight
        return KVCache(self.layer_specs, batch_size, weight.dtype, weight.device, settings)

    def reset_parameters(self, seed: int) -> None:
        """Draw all weights anew: the same weights for the same seed on any device and under any sharding."""
        init_weights(self, self.config, seed)


def shared_name(spec: LayerSpec) -> str:
    """Under which name the Decoder holds what layers like this one share: ``t5_4``, ``t5_max_distance20_4``.

    It says the fields that are not the scheme's defaults, and the shape, and not which layer comes first: a plan that
    begins with other weights finds a table by what the table is.
    """
    scheme = spec.position
    fields = [f"{f.name}{getattr(scheme, f.name)}" for f in dataclasses.fields(scheme)]
    defaults = [f"{f.name}{f.default}" for f in dataclasses.fields(scheme)]
    told = [field for field, default in zip(fields, defaults, strict=True) if field != default]
    parts = [scheme.scheme, *told, *map(str, scheme.shared_shape(spec.shape))]
    return "_".join(re.sub(r"\W+", "-", part) for part in parts)  # no dot may stand in a module's name


def build_model(config: ModelConfig, seed: int = 0, device: torch.device | str | None = None) -> Decoder:
    """A Decoder with random weights; on ``device="meta"`` it has shapes only."""
    # Always built there: what torch's modules would draw is drawn again below, and would move its global generator.
    with torch.device("meta"):
        model = Decoder(config)
    if str(device) != "meta":
        model.to_empty(device=device or "cpu")
        model.reset_parameters(seed)
    return model
