"""Decoding with the KV cache: prompts of any length in pieces of any size, batches of unequal prompts.

Where a plan's keys depend on the length in use (RoPE scaling `dynamic_ntk`, `longrope`) and the text passes the length
up to which they do not, no cache is exact: each new token is then a forward over the whole text.

ids = generate(model, [[1, 5, 9], [1, 7]], max_new_tokens=20, temperature=0.8, top_p=0.95, seed=0)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from minillm.attention.cache import KVCache
from minillm.attention.cache_settings import CacheSettings
from minillm.errors import ConfigError
from minillm.generation.sampling import Repetition, Sampling, generators_for, pick
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
    seed: int | Sequence[int] | None = None,
    stop_ids: Sequence[int] = (),
    stop_when: Callable[[int, list[int]], bool] | None = None,
    min_p: float | None = None,
    repetition_penalty: float = 1.0,
    cache: CacheSettings = CacheSettings(),  # noqa: B008  # frozen
) -> list[list[int]]:
    """Continue each prompt; the lists returned hold the new ids only.

    Args:
        prompts: one list of ids each, at least one id long; lengths may differ, and no row sees another's padding.
        temperature: 0 is greedy. Applied before top_k, top_p and min_p, which then cut the sharpened distribution.
        top_k: sample among the k likeliest; None or 0 keeps all.
        top_p: sample among the likeliest whose probabilities sum to p; the likeliest is always kept.
        seed: of the sampling, which then depends on a row's place in the batch but not on its batch-mates; or one seed
            for each prompt, and then not on its place either.
        stop_ids: a row ends after any of these, which is kept as its last id.
        stop_when: called with a row's number and its new ids after each of them (but for stop_ids); where it is true
            the row ends. Text can be shown from here while it is made.
        min_p: sample among those at least so likely as min_p times the likeliest; None or 0 keeps all.
        repetition_penalty: above 1, ids that the row holds already become less likely (`Repetition`).
        cache: how keys and values are kept. In fewer bits, a row's logits depend a little on how far it is padded, so
            on the longest prompt beside it.

    Raises:
        ConfigError: for an empty prompt, an id outside the vocabulary or a setting out of range; for a `cache` other
            than the exact one where the text gets longer than any cache is good for (see above).
    """
    sampling = Sampling(temperature, top_k, top_p, min_p, repetition_penalty)
    _check(model, prompts, max_new_tokens)
    if not prompts or max_new_tokens == 0:
        return [[] for _ in prompts]
    was_training = model.training
    model.eval()
    try:
        device = model.embed_tokens.weight.device
        generators = generators_for(seed, len(prompts), device)
        return _decode(model, prompts, max_new_tokens, sampling, generators, set(stop_ids), stop_when, cache)
    finally:
        model.train(was_training)


def _decode(
    model: Decoder,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    sampling: Sampling,
    generators: Sequence[torch.Generator | None],
    stop_ids: set[int],
    stop_when: Callable[[int, list[int]], bool] | None,
    settings: CacheSettings,
) -> list[list[int]]:
    device = model.embed_tokens.weight.device
    tokens, documents = _left_pad(prompts, device)
    cache = _cache(model, len(prompts), tokens.shape[1] + max_new_tokens - 1, settings)
    step = tokens.shape[1] if cache is None else max(1, PREFILL_TOKENS // len(prompts))
    for start in range(0, tokens.shape[1], step):
        ids = None if documents is None else documents[:, start : start + step]
        hidden = model.hidden(tokens[:, start : start + step], document_ids=ids, cache=cache)
    repetition = Repetition(sampling.repetition_penalty, prompts, model.config.vocab_size, device)
    out: list[list[int]] = [[] for _ in prompts]
    open_rows = set(range(len(prompts)))
    for new in range(max_new_tokens):
        chosen = pick(repetition.apply(model.logits(hidden[:, -1:])[:, -1]), sampling, generators)
        repetition.add(chosen)
        for row, token in enumerate(chosen.tolist()):
            if row in open_rows:
                out[row].append(token)
                if token in stop_ids or (stop_when is not None and stop_when(row, out[row])):
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


def _cache(model: Decoder, rows: int, length: int, settings: CacheSettings) -> KVCache | None:
    """A cache for texts of up to `length` tokens, or None where none gives the logits of decoding without one."""
    for spec in model.layer_specs:
        limit = spec.position.cache_limit
        if limit is not None and length > limit:
            if settings.exact:
                return None
            raise ConfigError(
                f"cache: layer {spec.index} (position '{spec.position.scheme}') changes its keys once a text is longer "
                f"than {limit} tokens, so that no cache is exact, and this one may get {length} tokens long. Allowed: "
                "fewer tokens, or the cache of kind full without evict."
            )
    return model.new_cache(rows, settings)


def _left_pad(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor | None]:
    """Prompts flush right in (B, T), and document ids that mark the padding; None where there is none."""
    longest = max(len(p) for p in prompts)
    tokens = torch.zeros(len(prompts), longest, dtype=torch.int64, device=device)
    documents = torch.full_like(tokens, -1)
    for row, prompt in enumerate(prompts):
        tokens[row, longest - len(prompt) :] = torch.tensor(list(prompt), dtype=torch.int64, device=device)
        documents[row, longest - len(prompt) :] = 0
    return tokens, None if all(len(p) == longest for p in prompts) else documents


def _check(model: Decoder, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> None:
    vocab_size = model.config.vocab_size
    for row, prompt in enumerate(prompts):
        if len(prompt) == 0:
            raise ConfigError(f"prompts[{row}] is empty: give at least one id, e.g. the tokenizer's bos_id.")
        wrong = next((i for i in prompt if not 0 <= i < vocab_size), None)
        if wrong is not None:
            raise ConfigError(f"prompts[{row}] holds the id {wrong}; the model knows 0 to {vocab_size - 1}.")
    if max_new_tokens < 0:
        raise ConfigError(f"max_new_tokens = {max_new_tokens}: must not be negative.")
