"""A Decoder from a family's tensors, and a family's tensors from a Decoder."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from minillm.config.schema import ModelConfig
from minillm.errors import ConfigError, MinillmError
from minillm.hub.family import Family, relaid
from minillm.model.decoder import Decoder, build_model
from minillm.position.rope import RoPE
from minillm.position.rotation_forms import half_to_interleaved, interleaved_to_half

Dtype = torch.dtype | None


def build(
    family: Family, model: ModelConfig, tensors: Mapping[str, Tensor], where: str, dtype: Dtype = None
) -> Decoder:
    """A Decoder in eval mode that owns its weights.

    Args:
        tensors: stored tensors under the family's names, with or without its prefix.
        where: what error messages call their source.
        dtype: of the weights; None keeps what is stored, or float32 where that is mixed.

    Raises:
        MinillmError: tensors are missing, too many, of other shapes than the configuration says, or stored under two
            names with two values.
    """
    stored = _stored(family, tensors, where)
    decoder = build_model(model, device="meta")
    links = family.links(model)
    _tie(family, model, stored, tensors, where)
    wanted = {name for link in links for name in link.theirs}
    missing, unknown = sorted(wanted - set(stored)), sorted(set(stored) - wanted)
    if missing or unknown:
        raise MinillmError(
            f"{where} does not hold the weights that its config.json describes: "
            f"{_listed('missing', missing)}{'; ' if missing and unknown else ''}{_listed('not known', unknown)}."
        )
    dtype = dtype or _stored_dtype(tensors[stored[name]] for name in wanted)
    expected = decoder.state_dict()
    state: dict[str, Tensor] = {}
    for link in links:
        parts = [tensors[stored[name]] for name in link.theirs]
        for name, part, shaped in zip(link.theirs, parts, link.to_theirs(expected[link.ours]), strict=True):
            _check(name, part, shaped.shape, where)
        parts = [part.to(dtype) for part in parts]
        made = link.to_ours(parts)
        shared = any(made.untyped_storage().data_ptr() == part.untyped_storage().data_ptr() for part in parts)
        state[link.ours] = made.clone() if shared else made  # never the mapped file, nor another model's weights
    decoder.load_state_dict(state, strict=True, assign=True)
    return decoder.eval()


def tensors_of(family: Family, decoder: Decoder) -> dict[str, Tensor]:
    """`decoder`'s weights under the family's names, the tied head left out."""
    target = relaid(decoder.config, family.layout)
    state = decoder.state_dict()
    out: dict[str, Tensor] = {}
    for link in family.links(target):
        ours = _turned(state[link.ours], link.ours, decoder.config, target)
        out.update(zip(link.theirs, link.to_theirs(ours.detach()), strict=True))
    return out


def _turned(tensor: Tensor, name: str, asked: ModelConfig, target: ModelConfig) -> Tensor:
    """Queries, keys and their norms of a layer whose rotation pairs other channels in `target`, rearranged for it."""
    parts = name.split(".")
    if parts[0] != "layers" or not any(part in parts for part in ("qkv_proj", "q_norm", "k_norm")):
        return tensor
    mine, other = asked.layers[int(parts[1])], target.layers[int(parts[1])]
    if mine.position == other.position:
        return tensor
    assert isinstance(mine.position, RoPE)
    turn = half_to_interleaved if mine.position.layout == "half" else interleaved_to_half
    rotary = mine.position.rotary_dim(mine.head_dim)
    if "qkv_proj" not in parts:  # a norm over one head or over all
        return turn(tensor, tensor.shape[0] // mine.head_dim, rotary)
    heads = mine.num_attention_heads + mine.num_key_value_heads
    turned, values = tensor.tensor_split([heads * mine.head_dim])
    return torch.cat([turn(turned, heads, rotary), values])


def _stored(family: Family, tensors: Mapping[str, Tensor], where: str) -> dict[str, str]:
    """The family's names of what is stored, and the names that it is stored under."""
    out: dict[str, str] = {}
    for name in tensors:
        known = family.tensor_name(name)
        if known is None:
            continue
        other = out.setdefault(known, name)
        if other != name and not _same_bits(tensors[other], tensors[name]):
            raise MinillmError(f"{where}: {other} and {name} are names of one tensor, and differ. Keep one of them.")
    return out


def _same_bits(a: Tensor, b: Tensor) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return torch.equal(*(x.contiguous().flatten().view(torch.uint8) for x in (a, b)))


def _tie(family: Family, model: ModelConfig, stored: dict[str, str], tensors: Mapping[str, Tensor], where: str) -> None:
    """A tied head may be stored under its own name, under the embedding's, or twice."""
    if not model.block.tie_word_embeddings or family.head not in stored:
        return
    embedding = family.embedding
    if embedding not in stored:
        stored[embedding] = stored[family.head]
    elif not torch.equal(tensors[stored[embedding]], tensors[stored[family.head]]):
        raise ConfigError(
            f"{where}: config.json ties the head to the embeddings, but {family.head} and {embedding} differ. "
            f"Set tie_word_embeddings to false there to keep both."
        )
    del stored[family.head]


def _stored_dtype(tensors: Iterator[Tensor]) -> torch.dtype:
    found = {tensor.dtype for tensor in tensors}
    if len(found) == 1 and (only := found.pop()) in (torch.float32, torch.bfloat16, torch.float16, torch.float64):
        return only
    return torch.float32


def _check(name: str, part: Tensor, shape: torch.Size, where: str) -> None:
    if not part.is_floating_point():
        raise MinillmError(f"{where}: {name} holds {part.dtype}: quantised weights are not read here.")
    if part.shape != shape:
        raise MinillmError(f"{where}: {name} has the shape {tuple(part.shape)}, config.json says {tuple(shape)}.")


def _listed(word: str, names: list[str], most: int = 6) -> str:
    if not names:
        return ""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{word}: {', '.join(names[:most])}{more}"
