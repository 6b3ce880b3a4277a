"""Reading a Hugging Face folder: config.json and safetensors, nothing else. No code in it runs, nothing is unpickled.

Files are memory-mapped and read tensor by tensor; one file or several with `model.safetensors.index.json`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from torch import Tensor

from minillm.errors import MinillmError

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
PICKLES = ("pytorch_model.bin", "pytorch_model.bin.index.json", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack")


def read_config(path: str | Path) -> dict[str, Any]:
    """config.json of a folder (or of a path to the file itself) as plain values."""
    path = Path(path)
    try:
        path = path.expanduser()
        file = path if path.is_file() else path / "config.json"
        there = path.exists()
    except (OSError, ValueError, RuntimeError) as error:  # too long, a zero byte, a user that is not known
        raise MinillmError(f"{str(path)!r} is no path that can be looked at: {error}.") from None
    if not there:
        raise MinillmError(
            f"There is no folder {path}. A model's name on the hub is not looked up: download it, "
            f"e.g. `hf download NAME --local-dir FOLDER`, and give the folder."
        )
    if not file.exists():
        if (path / "adapter_config.json").exists():
            raise MinillmError(
                f"{path} holds an adapter (adapter_config.json), not a model. Merge it into its base first."
            )
        raise MinillmError(f"{path} is not a Hugging Face folder: it holds no config.json.")
    config = _json(file)
    if not isinstance(config, dict) or not isinstance(config.get("model_type"), str):
        raise MinillmError(f"{file}: expected a mapping with `model_type`, as transformers writes it.")
    return config


def _json(file: Path) -> Any:
    try:
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise MinillmError(f"{file} cannot be read: {error}.") from None


class Tensors(Mapping[str, Tensor]):
    """Stored tensors by name, read when asked for. Those of a folder share memory with its files until cloned."""

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder).expanduser()
        self._files: dict[str, Any] = {}
        self._home = self._find()

    def __getitem__(self, name: str) -> Tensor:
        file = self._open(self._home[name])
        try:
            tensor: Tensor = file.get_tensor(name)
        except Exception as error:  # the library's own class, where the file lacks it
            raise MinillmError(f"{self.folder / self._home[name]}: {name} cannot be read from it: {error}.") from None
        return tensor

    def __iter__(self) -> Iterator[str]:
        return iter(self._home)

    def __len__(self) -> int:
        return len(self._home)

    def _open(self, file: str) -> Any:
        if file not in self._files:
            try:
                from safetensors import safe_open
            except ImportError:
                raise MinillmError("Reading weights needs safetensors: pip install 'minillm[hf]'.") from None
            path = self.folder / file
            try:
                there = path.is_file()
            except (OSError, ValueError):  # a name that no file can have
                there = False
            if not there:
                raise MinillmError(f"{self.folder}: {file} is missing; {INDEX} names it. Is the download complete?")
            try:
                self._files[file] = safe_open(path, framework="pt")
            except Exception as error:  # the library has one class of its own, and raises OSError too
                raise MinillmError(f"{path} is not a whole safetensors file: {error}.") from None
        return self._files[file]

    def _find(self) -> dict[str, str]:
        """Tensor names and the files they lie in."""
        if (self.folder / INDEX).is_file():
            index = _json(self.folder / INDEX)
            homes = index.get("weight_map") if isinstance(index, dict) else None
            if not isinstance(homes, dict) or not homes:
                raise MinillmError(f"{self.folder / INDEX}: expected `weight_map`, tensor names with their files.")
            for name, file in homes.items():
                self._check(name, file)
            return homes
        if (self.folder / WEIGHTS).is_file():
            return dict.fromkeys(self._open(WEIGHTS).keys(), WEIGHTS)
        others = sorted({p.name for pattern in PICKLES for p in self.folder.glob(pattern)})
        if others:
            raise MinillmError(
                f"{self.folder} holds no safetensors, only {', '.join(others)}. Such files are pickles, which run code "
                f"when they are opened, and are not read here. If you trust where it is from, convert it once: "
                f"transformers.AutoModelForCausalLM.from_pretrained({str(self.folder)!r}).save_pretrained(OUT)."
            )
        if list(self.folder.glob("*.gguf")):
            raise MinillmError(
                f"{self.folder} holds GGUF weights. Those of a Llama-type model are converted by "
                f"python -m minillm.hub convert-gguf FILE OUT."
            )
        raise MinillmError(f"{self.folder} holds no weights: neither {WEIGHTS} nor {INDEX}.")

    def _check(self, name: str, file: Any) -> None:
        """A shard lies in the folder itself; links there may point elsewhere, as in the hub's cache."""
        bad = not isinstance(file, str) or len(PurePosixPath(file).parts) != 1 or file in ("..", ".") or "\\" in file
        if bad or not file.endswith(".safetensors"):
            raise MinillmError(
                f"{self.folder / INDEX}: {name} is said to lie in {file!r}. "
                f"Allowed: a .safetensors file of the folder itself."
            )
