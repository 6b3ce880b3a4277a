"""Decoding with the KV cache: prompts of any length in pieces of any size, batches of unequal prompts.

Where a plan's keys depend on the length in use (RoPE scaling `dynamic_ntk`, `longrope`) and the text passes the length
up to which they do not, no cache is exact: each new token is then a forward over the whole text.

ids = generate(model, [[1, 5, 9], [1, 7]], max_new_tokens=20, temperature=0.8, top_p=0.95, seed=0)
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from minillm.errors import ConfigError
from minillm.model.decoder import Decoder

PREFILL_TOKENS = 8192
"""Prompt tokens per forward over the whole batch; a longer prompt goes in pieces, which changes no logit."""


@torch.inference_mode()
def generate(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_ids: Sequence[int] = (),
    stop_when: Callable[[list[int]], bool] | None = None,
) -> list[list[int]]:
    """Continue each prompt; the lists returned hold the new ids only.

    Args:
        prompts: one list of ids each, at least one id long; lengths may differ, and no row sees another's padding.
        temperature: 0 is greedy. Applied before top_k and top_p, which then cut the sharpened distribution.
        top_k: sample among the k likeliest; None or 0 keeps all.
        top_p: sample among the likeliest whose probabilities sum to p; the likeliest is always kept.
        seed: of the sampling, which then depends on a row's place in the batch but not on its batch-mates.
        stop_ids: a row ends after any of these, which is kept as its last id.
        stop_when: a row ends once this is true of its new ids; asked after each of them.

    Raises:
        ConfigError: for an empty prompt, an id outside the vocabulary or a setting out of range.
    """
    _check(model, prompts, max_new_tokens, temperature, top_k, top_p)
    if not prompts or max_new_tokens == 0:
        return [[] for _ in prompts]
    was_training = model.training
    model.eval()
    try:
        return _decode(model, prompts, max_new_tokens, temperature, top_k, top_p, seed, set(stop_ids), stop_when)
    finally:
        model.train(was_training)


def _decode(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    seed: int | None,
    stop_ids: set[int],
    stop_when: Callable[[list[int]], bool] | None,
) -> list[list[int]]:
    device = model.embed_tokens.weight.device
    tokens, documents = _left_pad(prompts, device)
    cache = model.new_cache(len(prompts)) if _cache_is_exact(model, tokens.shape[1] + max_new_tokens - 1) else None
    step = tokens.shape[1] if cache is None else max(1, PREFILL_TOKENS // len(prompts))
    for start in range(0, tokens.shape[1], step):
        ids = None if documents is None else documents[:, start : start + step]
        hidden = model.hidden(tokens[:, start : start + step], document_ids=ids, cache=cache)
    generators = [_generator(seed, row, device) for row in range(len(prompts))]
    out: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    for new in range(max_new_tokens):
        chosen = pick(model.logits(hidden[:, -1:])[:, -1], temperature, top_k, top_p, generators)
        for row, token in enumerate(chosen.tolist()):
            if row in open_rows:
                out[row].append(token)
                if token in stop_ids or (stop_when is not None and stop_when(out[row])):
                    open_rows.discard(row)
        if not open_rows or new == max_new_tokens - 1:
            break
        if cache is not None:
            hidden = model.hidden(chosen[:, None], cache=cache)
            continue
        tokens = torch.cat((tokens, chosen[:, None]), dim=1)
        if documents is not None:
            documents = torch.cat((documents, documents[:, -1:]), dim=1)
        hidden = model.hidden(tokens, document_ids=documents)
    return out


def _cache_is_exact(model: Decoder, length: int) -> bool:
    """Does decoding with a cache give the logits of decoding without one, for texts of up to `length` tokens?"""
    limits = (spec.position.cache_limit for spec in model.layer_specs)
    return all(limit is None or length <= limit for limit in limits)


def _left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts flush right in (B, T), and document ids that mark the padding; None where there is none."""
    longest = max(len(p) for p in prompts)
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64, device=device)
    documents = torch.full_like(tokens, -1)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.int64, device=device)
        documents[row, longest - len(prompt) :] = 0
    return tokens, None if all(len(p) == longest for p in prompts) else documents


def pick(
    logits: Float[Tensor, "B V"],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
    generators: Sequence[torch.Generator | None],
) -> Int[Tensor, "B"]:
    """One id per row: the likeliest, or one drawn after temperature, then top_k, then top_p."""
    best = logits.argmax(dim=-1)
    if temperature == 0:
        return best
    # Relative to the best first: a tiny temperature then gives 0 and -inf, never NaN.
    scaled = (logits - logits.gather(1, best[:, None])).double() / temperature
    if top_k and top_k < logits.shape[-1]:
        # By place and not by value: of equal logits no more than top_k are kept.
        kept = scaled.topk(top_k, dim=-1)
        scaled = torch.full_like(scaled, float("-inf")).scatter(1, kept.indices, kept.values)
    probs = torch.softmax(scaled, dim=-1)
    if top_p is not None and top_p < 1:
        ordered, order = probs.sort(dim=-1, descending=True)
        before = ordered.cumsum(dim=-1) - ordered
        ordered = ordered.masked_fill(before >= top_p, 0.0)
        probs = torch.zeros_like(probs).scatter(1, order, ordered)
    rows = [torch.multinomial(p, 1, generator=g) for p, g in zip(probs, generators, strict=True)]
    return torch.cat(rows)


def _generator(seed: int | None, row: int, device: torch.device) -> torch.Generator | None:
    if seed is None:
        return None
    # 32 bits, well mixed: torch's CPU generator drops what is above them.
    return torch.Generator(device=device).manual_seed(zlib.crc32(f"{seed}:{row}".encode()))


def _check(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> None:
    vocab_size = model.config.vocab_size
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ConfigError(f"prompts[{row}] is empty: give at least one id, e.g. the tokenizer's bos_id.")
        wrong = next((i for i in prompt if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise ConfigError(f"prompts[{row}] holds the id {wrong}; the model knows 0 to {vocab_size - 1}.")
    if max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens = {max_new_tokens}: must not be negative.")
    if not temperature >= 0:
        raise ConfigError(f"temperature = {temperature}: must be 0 (greedy) or above.")
    if top_k is not None and top_k < 0:
        raise ConfigError(f"top_k = {top_k}: must not be negative.")
    if top_p is not None and not 0 < top_p <= 1:
        raise ConfigError(f"top_p = {top_p}: must be above 0 and at most 1.")
