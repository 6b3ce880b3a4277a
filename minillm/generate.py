"""`python -m minillm.generate`: continue a text as it is made, or a file of prompts.

The module may also be called: `minillm.generate(model, prompts, ...)` is the function of minillm.generation, whether
this module was imported before or not.

Exit codes: 0 done, 2 something the user can mend, 1 a bug, 130 after Ctrl-C.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from minillm.errors import MinillmError

if TYPE_CHECKING:
    from minillm.data.tokenizer import Tokenizer
    from minillm.generation.settings import GenerateSettings
    from minillm.model.decoder import Decoder

HELP = """Continue a text, or a file of prompts, with a trained model.

  python -m minillm.generate run=outputs/RUN prompt='The President'           text to stdout as it is made
  python -m minillm.generate run=hf:SmolLM3-3B prompt=- < story.txt           a Hugging Face folder, prompt from stdin
  python -m minillm.generate run=outputs/RUN prompt='Dear' cache=int4 cache.evict.window=512
  python -m minillm.generate run=outputs/RUN prompts=a.jsonl out=b.jsonl    goes on where it stopped

Keys, as KEY=VALUE, and their defaults:

  run                   a run folder, a checkpoint file, or a Hugging Face folder as hf:DIR
  prompt                the text to continue; - reads it from stdin, without its last line break
  prompts               or a file of prompts: .txt, one in each line, or .jsonl, objects with a key prompt
  out                   prompts: the .jsonl file that answers are added to; what it has already is not made again
  batch_size=8          prompts: how many at once
  max_new_tokens=100    the text ends after so many tokens, at the model's end marker, or at a stop string
  temperature=0.8       0 is greedy: always the likeliest
  top_k=null            draw among the k likeliest
  top_p=null            draw among the likeliest whose probabilities sum to p
  min_p=null            draw among those at least so likely as min_p times the likeliest
  repetition_penalty=1  above 1, what the text holds already becomes less likely
  stop=[]               the text ends before any of these strings: one, or a list as in stop='["\\n\\n", "THE END"]'
  seed=0                another one gives another text, the same one the same again
  bos=true              begin with the marker that begins documents, as in training
  cache=full            int8 or int4 hold keys and values in fewer bits
  cache.group=32        int8, int4: tokens that share the scale of a key channel
  cache.residual=128    int8, int4: tokens of a block, of which the newest is kept as it is
  cache.evict.window    full-attention layers remember so many newest tokens only ...
  cache.evict.sink_tokens=4   ... and so many first ones
  device=auto           auto (a GPU if there is one), cpu, cuda
  precision=fp32        fp32, or bf16 for the matrix products
  num_threads=null      CPU threads; null leaves PyTorch's choice
"""


def main() -> None:
    """Run the program on sys.argv; ends the process with the exit codes above."""
    sys.exit(program(sys.argv[1:]))


def program(arguments: Sequence[str]) -> int:
    """Carry out ``python -m minillm.generate ARGUMENTS`` and return its exit code."""
    if not arguments or any(a in ("-h", "--help", "help") for a in arguments):
        print(HELP, end="")
        return 0
    try:
        # Imported late: --help needs no torch.
        from minillm.generation.settings import read

        _run(read(arguments))
    except MinillmError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 2
    except KeyboardInterrupt:
        print("\nInterrupted.", file=sys.stderr)
        return 130
    return 0


def _run(settings: GenerateSettings) -> None:
    import torch

    from minillm.checkpoint import end_ids, load
    from minillm.evaluation.evaluate import choose_device
    from minillm.evaluation.scoring import autocast

    if settings.num_threads is not None:
        torch.set_num_threads(settings.num_threads)
    device = choose_device(settings.device)
    folder = settings.run.removeprefix("hf:")
    if folder != settings.run and not (Path(folder) / "config.json").is_file():
        raise MinillmError(f"run: there is no config.json in {folder}, so it is no Hugging Face folder.")
    model, tokenizer = load(folder)
    settings.cache.check(model.layer_specs)
    stop_ids = [tokenizer.bos_id, *end_ids(Path(folder), tokenizer)]
    if settings.prompts is not None:
        from minillm.evaluation.store import weights_digest
        from minillm.generation.prompt_file import answer_all

        weights = weights_digest(model.state_dict())
        with autocast(device, settings.precision):
            answer_all(model.to(device), tokenizer, settings, stop_ids, weights, say=_note)
        return
    with autocast(device, settings.precision):
        _stream(model.to(device), tokenizer, settings, stop_ids)


def _stream(model: Decoder, tokenizer: Tokenizer, settings: GenerateSettings, stop_ids: Sequence[int]) -> None:
    """Write the text to stdout while it is made, and how fast that was to stderr."""
    import dataclasses

    from minillm.generation import generate
    from minillm.generation.text import TextStream

    assert settings.prompt is not None
    prompt = sys.stdin.read().removesuffix("\n") if settings.prompt == "-" else settings.prompt
    ids = tokenizer.encode(prompt, bos=settings.bos)
    if not ids:
        raise MinillmError("prompt: is empty, and with bos=false there is nothing to continue.")
    stream = TextStream(tokenizer, settings.stop, before=ids)

    def stop_when(row: int, new: list[int]) -> bool:
        _write(stream.add(new[-1]))
        return stream.stopped

    begun = time.perf_counter()
    (new,) = generate(
        model, [ids], settings.max_new_tokens, **dataclasses.asdict(settings.sampling), seed=settings.seed,
        stop_ids=stop_ids, stop_when=stop_when, cache=settings.cache,
    )  # fmt: skip
    took = time.perf_counter() - begun
    _write(stream.finish() + "\n")
    _note(f"{len(ids)} tokens read, {len(new)} made in {took:.1f} s")


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def _note(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class _Program(ModuleType):
    """A module that is callable: importing it puts it where the function `minillm.generate` is looked up."""

    def __call__(self, *args: Any, **kwargs: Any) -> list[list[int]]:
        from minillm.generation import generate

        return generate(*args, **kwargs)


sys.modules[__name__].__class__ = _Program

if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` is no error
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale: text of a model may hold any character
    main()
