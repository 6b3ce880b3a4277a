"""A model and tokenizer of ours as a model of lm-evaluation-harness.

    lm = Adapter(model, tokenizer, max_length=1024)
    lm_eval.simple_evaluate(model=lm, tasks=["minillm_ruler"], task_manager=TaskManager(include_path=TASKS))

A text begins with the start marker, once, as training documents do. `HFLM` of an exported folder gives the same
numbers, but that it reads the marker twice where likelihoods are rolling (unless add_bos_token=False). Nothing is cut:
a text beyond a table of positions raises PositionUndefined.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval.api.model import TemplateLM
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from minillm.errors import MinillmError
from minillm.evaluation.harness.scoring import log_likelihoods
from minillm.evaluation.scoring import autocast
from minillm.generation import generate
from minillm.model.decoder import Decoder

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

    from minillm.data.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 256
"""Where a task does not say how many; the harness's number."""
TAKEN = ("temperature", "top_k", "top_p")
"""Settings of sampling that `generate` knows."""


class Adapter(TemplateLM):
    """What the harness asks for: likelihoods, rolling likelihoods, generated text."""

    def __init__(
        self,
        model: Decoder,
        tokenizer: Tokenizer,
        max_length: int,
        batch_tokens: int = 8192,
        precision: str = "fp32",
        start_marker: bool = True,
        end_ids: Sequence[int] = (),
        progress: Callable[[float], None] = lambda share: None,
    ) -> None:
        """
        Args:
            model: in eval mode, on its device.
            max_length: tokens of the windows that a rolling likelihood is cut into; no other text is cut.
            batch_tokens: most tokens in a forward pass (a longer text goes alone).
            start_marker: begin each text with it; without it, it stands for a context that is empty alone.
            end_ids: end a generated text besides the start marker, which ends documents too.
            progress: called with the share of a call's requests just answered.
        """
        super().__init__()
        self.model, self.text, self.max_length = model, tokenizer, max_length
        self.batch_tokens, self.precision = batch_tokens, precision
        self.start_marker = start_marker
        self.end_ids = [tokenizer.bos_id, *end_ids]
        self.progress = progress
        self._device = model.embed_tokens.weight.device

    @property
    def eot_token_id(self) -> int:
        return self.text.bos_id

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Ids, with the start marker unless told otherwise; a marker that the text begins with is it."""
        marked = self.start_marker if add_special_tokens is None else add_special_tokens
        if add_special_tokens is None and string.startswith(self.text.bos_token):
            string, marked = string.removeprefix(self.text.bos_token), True
        return self.text.encode(string, bos=marked)

    def loglikelihood(self, requests: list[Instance], disable_tqdm: bool = True) -> list[tuple[float, bool]]:
        return super().loglikelihood(requests, disable_tqdm=disable_tqdm)

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = True, **_: Any
    ) -> list[tuple[float, bool]]:
        for (_context, continuation), context_ids, ids in requests:
            if not context_ids or not ids:
                raise MinillmError(f"the tokenizer leaves nothing of the continuation {continuation!r} to predict")
        return self._scored([(context, ids) for _, context, ids in requests])

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = True) -> list[float]:
        """Sums over windows laid end to end, the last one moved back to be whole; the marker is read, not predicted."""
        owners, pairs = [], []
        for number, request in enumerate(requests):
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            for window in get_rolling_token_windows(ids, self.prefix_token_id, self.max_length, context_len=1):
                owners.append(number)
                pairs.append(make_disjoint_window(window))
        sums = [0.0] * len(requests)
        for owner, (log_probability, _) in zip(owners, self._scored(pairs), strict=True):
            sums[owner] += log_probability
        return sums

    def _scored(self, pairs: Sequence[tuple[Sequence[int], Sequence[int]]]) -> list[tuple[float, bool]]:
        def advance(done: int) -> None:
            self.progress(done / len(pairs))

        return log_likelihoods(self.model, pairs, self.batch_tokens, self.precision, advance)

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Text up to the first stop string, an end of document, or the number of tokens that the task allows."""
        asked = [self._asked(request) for request in requests]
        out = [""] * len(requests)
        for batch in self._batches([(len(ids), new, str(how)) for ids, new, how in asked]):
            _, new, how = asked[batch[0]]
            stops, sampling = how["until"], {name: how[name] for name in TAKEN if how.get(name)}
            with autocast(self.device, self.precision):
                made = generate(
                    self.model,
                    [asked[i][0] for i in batch],
                    new,
                    seed=0,
                    stop_ids=self.end_ids,
                    stop_when=_stopper(self.text, stops) if stops else None,
                    **sampling,
                )
            for i, ids in zip(batch, made, strict=True):
                out[i] = _cut(self.text.decode(ids[:-1] if ids and ids[-1] in self.end_ids else ids), stops)
            self.progress(len(batch) / len(requests))
        return out

    def _asked(self, request: Instance) -> tuple[list[int], int, dict[str, Any]]:
        """Prompt, number of new tokens, and how; MinillmError for what `generate` does not do."""
        context, given = request.args
        how = dict(normalize_gen_kwargs(given, DEFAULT_NEW_TOKENS))
        stops = [stop for stop in handle_stop_sequences(how.pop("until", None), eos=self.text.bos_token) if stop]
        new = int(how.pop("max_gen_toks"))
        if not how.pop("do_sample", False):
            how = {name: value for name, value in how.items() if name not in TAKEN}
        unknown = sorted(set(how) - {*TAKEN})
        if unknown:
            raise MinillmError(
                f"it asks to generate with {', '.join(unknown)}; known here: do_sample, {', '.join(TAKEN)}"
            )
        return self.tok_encode(context) or [self.prefix_token_id], new, {**how, "until": stops}

    def _batches(self, asked: Sequence[tuple[int, int, str]]) -> list[list[int]]:
        """Numbers of prompts that are generated together: alike in all but their length, longest first."""
        batches: list[list[int]] = []
        for number in sorted(range(len(asked)), key=lambda i: (asked[i][1:], -asked[i][0])):
            if batches:
                longest, new, how = asked[batches[-1][0]]
                fits = (len(batches[-1]) + 1) * (longest + new) <= self.batch_tokens
                if fits and asked[number][1:] == (new, how):
                    batches[-1].append(number)
                    continue
            batches.append([number])
        return batches


def _stopper(text: Tokenizer, stops: Sequence[str]) -> Callable[[int, list[int]], bool]:
    """Whether the newest tokens hold a stop string: a token is a byte at least, so as many tokens as it has bytes."""
    enough = max(len(stop.encode()) for stop in stops) + 1

    def stop_when(row: int, ids: list[int]) -> bool:
        tail = text.decode(ids[-enough:], skip_special_tokens=False)
        return any(stop in tail for stop in stops)

    return stop_when


def _cut(text: str, stops: Sequence[str]) -> str:
    """`text` before the first stop string."""
    for stop in stops:
        text = text.split(stop)[0]
    return text
