"""Learned absolute embeddings: a table of one vector per position, added to the token embeddings (GPT-2).

The table has `max_position_embeddings` rows, the training length. A later position has no vector: in training that is
an error; in eval mode `PositionUndefined`, which evaluations report as "not defined" instead of a number.

A trained table can be stretched to a longer one before fine-tuning at the new length: `interpolate_table`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from minillm.errors import MinillmError, PositionUndefined
from minillm.position.base import EmbeddingScheme, Place, register


@register("learned")
@dataclass(frozen=True)
class Learned(EmbeddingScheme):
    """The table's size is the model's training length, so it has no field of its own."""

    place: ClassVar[Place] = "embedding"

    def make_embedding(self, hidden_size: int, max_position_embeddings: int) -> nn.Module:
        return LearnedEmbedding(hidden_size, max_position_embeddings)

    def max_positions(self, max_position_embeddings: int) -> int | None:
        return max_position_embeddings


class LearnedEmbedding(nn.Module):
    def __init__(self, hidden_size: int, num_positions: int) -> None:
        super().__init__()
        # Drawn with the model's other weights; nn.Embedding(...) would draw here too.
        self.table = nn.Embedding.from_pretrained(torch.empty(num_positions, hidden_size), freeze=False)

    def forward(self, position: Int[Tensor, "B T"]) -> Float[Tensor, "B T D"]:
        """Rows of the table. Beyond it: MinillmError in training mode, PositionUndefined in eval mode."""
        # Asked before the lookup: on a GPU an index out of range kills the process with a device-side assertion.
        if position.numel() and not position.is_meta:
            length = int(position.max()) + 1
            if length > self.table.num_embeddings:
                raise self._beyond(length)
        return self.table(position)

    def _beyond(self, length: int) -> MinillmError:
        size = self.table.num_embeddings
        message = (
            f"Position {length - 1} (a document of {length} tokens) is beyond the learned table of {size} positions"
        )
        if self.training:
            return MinillmError(
                f"{message}. Train with data.seq_len at most {size}, or with a scheme that has no table "
                f"(model.embedding.position: sinusoidal, or rope, alibi or nope in the layers)."
            )
        return PositionUndefined(f"{message}: the model is not defined there.")


def interpolate_table(table: Float[Tensor, "N D"], length: int) -> Float[Tensor, "M D"]:
    """A trained position table stretched to `length` rows: linear in position, first and last rows kept.

    Row j of the new table is the old one at position j * (N - 1) / (length - 1), between its two neighbours where that
    is no whole number. With length = (N - 1) * k + 1 every k-th row is an old row, bit for bit; with length = N the
    table is returned as it was. What was one step is now (N - 1) / (length - 1) of one, as in position interpolation
    (arXiv 2306.15595), so the model must be trained on at the new length.

    Args:
        table: (N, D), at least two rows.
        length: rows of the new table, at least N.

    Returns:
        (length, D) in the dtype and on the device of `table`; interpolated in float32 at least.

    Raises:
        MinillmError: for a length below N, or a table of a single row.
    """
    old = table.shape[0]
    if length < old:
        raise MinillmError(f"interpolate_table: length = {length} is below the {old} positions of the table.")
    if old < 2:
        raise MinillmError(f"interpolate_table: a table of {old} positions has nothing to interpolate between.")
    # Whole numbers: an old row is then met exactly, whatever the lengths are.
    place = torch.arange(length, device=table.device) * (old - 1)
    low = place // (length - 1)
    wide = table.to(torch.promote_types(table.dtype, torch.float32))
    share = ((place % (length - 1)).to(wide.dtype) / (length - 1))[:, None]
    start, end = wide[low], wide[(low + 1).clamp(max=old - 1)]
    return (start + share * (end - start)).to(table.dtype)
