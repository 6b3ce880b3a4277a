"""`python -m minillm.hub`: show the layer plan of a Hugging Face folder, list families, write a run as a folder."""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence

from minillm.errors import MinillmError

DESCRIPTION = """Hugging Face folders in and out.

  python -m minillm.hub show SmolLM3-3B             the layer plan, from config.json alone: no weights are read
  python -m minillm.hub families                    the families that are read and written
  python -m minillm.hub export outputs/RUN OUT      a run as a folder that transformers loads, tokenizer included
  python -m minillm.hub import FOLDER outputs/OUT   a Hugging Face folder as a run at step 0, for eval.py and load
  python -m minillm.hub convert-gguf FILE OUT       a GGUF file of a Llama-type model as a Hugging Face folder

In Python: minillm.hub.from_transformers(FOLDER), minillm.hub.to_transformers(model), minillm.load(FOLDER).
To train from a folder's weights: python train.py init_from=FOLDER.
Exit codes: 0 done, 2 an error you can mend.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out one command and return its exit code."""
    parser = argparse.ArgumentParser(
        "python -m minillm.hub", description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    show = commands.add_parser("show", help="print the layer plan of a Hugging Face folder")
    show.add_argument("path", metavar="PATH", help="a folder with config.json, or the file itself")
    show.add_argument("--text-only", action="store_true", help="the language model of a multimodal folder")
    commands.add_parser("families", help="list the families that are read and written")
    export = commands.add_parser("export", help="write a run or checkpoint as a Hugging Face folder")
    export.add_argument("run", metavar="RUN", help="a run folder or a checkpoint file")
    export.add_argument("out", metavar="OUT", help="the folder to write")
    export.add_argument(
        "--family",
        help="the family to write; default: the plainest that says the plan exactly, else this project's own (minillm)",
    )
    imported = commands.add_parser("import", help="write a Hugging Face folder as a run, for eval.py and minillm.load")
    imported.add_argument("folder", metavar="FOLDER", help="a folder with config.json, safetensors and tokenizer.json")
    imported.add_argument("out", metavar="OUT", help="the run folder to write")
    imported.add_argument("--text-only", action="store_true", help="the language model of a multimodal folder")
    converted = commands.add_parser("convert-gguf", help="write a GGUF file of a Llama-type model as a folder")
    converted.add_argument("file", metavar="FILE", help="a .gguf file; its weights are dequantised to float32")
    converted.add_argument("out", metavar="OUT", help="the folder to write")
    converted.add_argument("--no-tokenizer", action="store_true", help="leave out a tokenizer that is not known here")
    given = parser.parse_args(arguments)
    try:
        if given.command == "show":
            print(shown(given.path, given.text_only))
        elif given.command == "families":
            print(listed())
        elif given.command == "import":
            from minillm.hub.api import read_plan
            from minillm.hub.runs import import_run

            model = import_run(given.folder, given.out, given.text_only)
            for warning in read_plan(given.folder, given.text_only)[2]:
                print(f"Warning: {warning}", file=sys.stderr)
            print(f"{given.out}: a run at step 0 with {sum(p.numel() for p in model.parameters()):,} parameters")
        elif given.command == "convert-gguf":
            from minillm.hub.gguf import convert

            convert(given.file, given.out, tokenizer=not given.no_tokenizer)
            print(f"{given.out}: LlamaForCausalLM (llama), dequantised to float32")
        else:
            from minillm.hub.runs import export as write

            family = write(given.run, given.out, given.family)
            if family.by_name_only and given.family is None:
                print(why_none(given.out))
            print(f"{given.out}: {family.architecture} ({family.name}), model.safetensors and tokenizer")
    except MinillmError as error:
        print(f"Error: {error}", file=sys.stderr, flush=True)
        return 2
    return 0


def shown(path: str, text_only: bool = False) -> str:
    """Family, sizes, block and layer table of a folder, and what in it has no effect."""
    import dataclasses

    from minillm.config.schema import BlockConfig
    from minillm.config.table import layer_table
    from minillm.hub.api import read_plan
    from minillm.model.cost import cost

    family, model, warnings = read_plan(path, text_only)
    heads = model.layers[0]
    length = model.max_position_embeddings
    plain = BlockConfig()
    block = {f.name: getattr(model.block, f.name) for f in dataclasses.fields(plain)}
    said = ("norm", "norm_placement", "mlp", "tie_word_embeddings")
    other = [name for name, value in block.items() if name in said or value != getattr(plain, name)]
    lines = [
        f"{path}: {family.name} ({family.architecture}), {cost(model, length, 2).parameters:,} parameters",
        f"hidden_size {model.hidden_size}, intermediate_size {model.intermediate_size}, heads "
        f"{heads.num_attention_heads} x {heads.head_dim}, vocab_size {model.vocab_size}, "
        f"max_position_embeddings {length}",
        "block: " + ", ".join(f"{name} {block[name]}" for name in other if name != "initializer_range"),
        "",
        layer_table(model, length, bytes_per_value=2),
    ]
    return "\n".join([*lines, *(f"Warning: {warning}" for warning in warnings)])


def why_none(path: str) -> str:
    """Why a folder in this project's own form is in no other family's."""
    from minillm.hub.api import read_plan
    from minillm.hub.choose import NoFamily, choose

    _, model, _ = read_plan(path)
    try:
        return f"{choose(model).name} expresses this model exactly."
    except NoFamily as error:
        return str(error)


def listed() -> str:
    """Families, plainest first, with what their file says they are."""
    from minillm.hub.family import families

    lines = []
    for one in families():
        about = (sys.modules[type(one).__module__].__doc__ or "").split("\n")[0]
        note = "" if one.exports else " (its text part, read only)"
        lines.append(f"{one.name:<12}  {about}{note}")
    return "\n".join(lines)


if __name__ == "__main__":
    if hasattr(signal, "SIGPIPE"):
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` is no error
    sys.exit(main())
