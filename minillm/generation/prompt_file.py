"""A file of prompts in, a file of answers out: in batches, and only what is not there yet.

Each answer is one line of JSON: `line` of the prompt in its file (from 1), its own fields, `text` (what was added),
`tokens`, `end` (why it ended: `marker`, `stop` or `length`) and `settings` (a digest of all that shapes it). A prompt's
random numbers depend on the seed and its line, so neither the batch size nor an interruption changes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from minillm.errors import MinillmError
from minillm.evaluation.progress import Progress
from minillm.generation.decode import generate
from minillm.generation.settings import GenerateSettings
from minillm.generation.text import TextStream

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer
    from minillm.model.decoder import Decoder

OWN = ("line", "text", "tokens", "end", "settings")
"""Fields that an answer adds to its prompt's."""
BEGINNING = b'{"line": '
"""What every answer begins with: no other last line of a file is taken for one that was cut off."""
NOT_SHAPING = ("run", "prompt", "prompts", "out", "batch_size", "device", "num_threads")


@dataclass(frozen=True)
class Prompt:
    """One line of the file; `wrong` says why it cannot be continued."""

    line: int
    fields: dict[str, Any]
    wrong: str | None = None


def read_prompts(path: Path) -> list[Prompt]:
    """The prompts of a .txt or .jsonl file; blank lines are passed over. MinillmError where there is no such file."""
    if path.suffix not in (".txt", ".jsonl"):
        raise MinillmError(f"prompts: {path} is neither .txt (a prompt in each line) nor .jsonl (objects with prompt).")
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise MinillmError(f"prompts: {path} cannot be read: {error}.") from None
    numbered = [(i, text.removesuffix("\r")) for i, text in enumerate(lines, start=1) if text.strip()]
    if not numbered:
        raise MinillmError(f"prompts: {path} holds no prompt.")
    if path.suffix == ".txt":
        return [Prompt(i, {"prompt": text}) for i, text in numbered]
    return [_parsed(i, text) for i, text in numbered]


def _parsed(line: int, text: str) -> Prompt:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        return Prompt(line, {}, f"is no JSON: {error}")
    if not isinstance(value, dict) or not isinstance(value.get("prompt"), str):
        return Prompt(line, {}, 'is no object with a text under "prompt"')
    taken = [name for name in OWN if name in value]
    if taken:
        return Prompt(line, value, f"has a field {taken[0]!r}, which answers use themselves")
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        return Prompt(line, {}, "holds half a surrogate pair (\\ud800 to \\udfff), which is no character")
    return Prompt(line, value)


def digest(settings: GenerateSettings, weights: str) -> str:
    """Twelve hex digits over the weights and all settings that shape an answer."""
    shaping = {name: value for name, value in asdict(settings).items() if name not in NOT_SHAPING}
    return hashlib.sha256(json.dumps([weights, shaping], sort_keys=True).encode()).hexdigest()[:12]


def answered(out: Path, prompts: Sequence[Prompt], settings: str) -> set[int]:
    """Lines that `out` has answers to. An answer that was cut off in writing, at the end, is taken away.

    Raises:
        MinillmError: `out` holds something else: other prompts, or answers under other settings.
    """
    if not out.exists():
        return set()
    try:
        content = out.read_bytes()
    except OSError as error:
        raise MinillmError(f"out: {out} cannot be read: {error.strerror}.") from None
    whole = content[: content.rfind(b"\n") + 1]
    texts = {prompt.line: prompt.fields.get("prompt") for prompt in prompts}
    done: set[int] = set()
    for number, row in enumerate(whole.splitlines(), start=1):
        where = f"out: line {number} of {out}"
        try:
            value = json.loads(row)
            line, made = value["line"], value["settings"]
            asked = texts.get(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise MinillmError(f"{where} is no answer of this program. Give another file.") from None
        if made != settings:
            raise MinillmError(
                f"{where} was made under other settings or by other weights ({made}, now {settings}). Give another "
                "file, or remove this one."
            )
        if asked is None or value.get("prompt") != asked:
            raise MinillmError(f"{where} answers line {line} of another file of prompts. Give another file.")
        done.add(line)
    rest = content[len(whole) :]
    if not rest.startswith(BEGINNING[: len(rest)]):
        raise MinillmError(f"out: the last line of {out} is no answer of this program. Give another file.")
    if rest:
        with out.open("r+b") as file:
            file.truncate(len(whole))
    return done


def answer_all(
    model: Decoder,
    tokenizer: Tokenizer,
    settings: GenerateSettings,
    stop_ids: Sequence[int],
    weights: str,
    say: Callable[[str], None],
) -> None:
    """Continue all prompts of `settings.prompts` into `settings.out`.

    Raises:
        MinillmError: at the end, where some prompts could not be continued; each was told to `say` with its line.
    """
    assert settings.prompts is not None
    assert settings.out is not None
    path, out = Path(settings.prompts), Path(settings.out)
    prompts, made = read_prompts(path), digest(settings, weights)
    done = answered(out, prompts, made)
    if done:
        say(f"{out} has {len(done)} of {len(prompts)} answers already")
    left = [prompt for prompt in prompts if prompt.line not in done]
    failed = 0

    def fail(prompt: Prompt, why: object) -> None:
        nonlocal failed
        failed += 1
        say(f"{path}, line {prompt.line}: {why}")

    for prompt in left:
        if prompt.wrong is not None:
            fail(prompt, prompt.wrong)
    good = [prompt for prompt in left if prompt.wrong is None]
    try:
        file = out.open("a", encoding="utf-8")
    except OSError as error:
        raise MinillmError(f"out: {out} cannot be written: {error.strerror}.") from None
    with file, Progress("generate", len(good)) as progress:
        for start in range(0, len(good), settings.batch_size):
            batch = good[start : start + settings.batch_size]
            for prompt, answer in _answers(model, tokenizer, settings, stop_ids, batch):
                if isinstance(answer, MinillmError):
                    fail(prompt, answer)
                    continue
                row = {"line": prompt.line, **prompt.fields, **answer, "settings": made}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
            file.flush()
            progress.advance(len(batch))
    if failed:
        raise MinillmError(f"{failed} of {len(prompts)} prompts have no answer; the same command tries them again.")


def _answers(
    model: Decoder,
    tokenizer: Tokenizer,
    settings: GenerateSettings,
    stop_ids: Sequence[int],
    batch: Sequence[Prompt],
) -> list[tuple[Prompt, dict[str, Any] | MinillmError]]:
    """Each prompt's answer, or why it has none: a batch that fails goes again one by one."""
    try:
        made = answers(model, tokenizer, settings, stop_ids, batch)
    except MinillmError as error:
        if len(batch) == 1:
            return [(batch[0], error)]
        return [pair for one in batch for pair in _answers(model, tokenizer, settings, stop_ids, [one])]
    return list(zip(batch, made, strict=True))


def answers(
    model: Decoder,
    tokenizer: Tokenizer,
    settings: GenerateSettings,
    stop_ids: Sequence[int],
    batch: Sequence[Prompt],
) -> list[dict[str, Any]]:
    """Text, tokens and end of each."""
    encoded = [tokenizer.encode(prompt.fields["prompt"], bos=settings.bos) for prompt in batch]
    if not all(encoded):
        raise MinillmError("is empty: with bos=false a prompt needs a token at least.")
    streams = [TextStream(tokenizer, settings.stop, before=ids) for ids in encoded]

    def stop_when(row: int, ids: list[int]) -> bool:
        streams[row].add(ids[-1])
        return streams[row].stopped

    new = generate(
        model, encoded, settings.max_new_tokens, **asdict(settings.sampling), stop_ids=stop_ids, stop_when=stop_when,
        seed=[settings.seed * 2**32 + prompt.line for prompt in batch], cache=settings.cache,
    )  # fmt: skip
    out = []
    for ids, stream in zip(new, streams, strict=True):
        stream.finish()
        end = "stop" if stream.stopped else "marker" if ids[-1] in stop_ids else "length"
        out.append({"text": stream.text, "tokens": len(ids), "end": end})
    return out
