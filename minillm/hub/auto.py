"""Tells transformers of this project's own form, whenever transformers is there and no sooner.

Importing transformers takes seconds that reading a folder does not need. So its Auto classes are not imported here:
they are told as soon as someone else imports them, before or after `import minillm.hub`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

HOME = "transformers.models.auto"


def tell_auto_classes() -> None:
    """Make `AutoConfig` and `AutoModelForCausalLM` know "minillm", now or when they are imported."""
    for name, tell in TELL.items():
        if name in sys.modules:
            tell(sys.modules[name])
    if not any(isinstance(finder, _AfterImport) for finder in sys.meta_path):
        sys.meta_path.insert(0, _AfterImport())


def _tell_config(module: ModuleType) -> None:
    from minillm.hub.own_config import MinillmConfig

    module.AutoConfig.register(MinillmConfig.model_type, MinillmConfig, exist_ok=True)


def _tell_model(module: ModuleType) -> None:
    from minillm.hub.own_config import MinillmConfig
    from minillm.hub.own_model import MinillmForCausalLM

    module.AutoModelForCausalLM.register(MinillmConfig, MinillmForCausalLM, exist_ok=True)


TELL: dict[str, Callable[[ModuleType], None]] = {
    f"{HOME}.configuration_auto": _tell_config,
    f"{HOME}.modeling_auto": _tell_model,
}


class _AfterImport(MetaPathFinder):
    """Finds the modules in `TELL` where they are, and calls its function once one has run."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        tell = TELL.get(fullname)
        spec = None if tell is None else PathFinder.find_spec(fullname, path, target)
        if tell is None or spec is None or spec.loader is None:
            return None
        run = spec.loader.exec_module

        def run_and_tell(module: ModuleType) -> None:
            run(module)
            tell(module)

        spec.loader.exec_module = run_and_tell  # type: ignore[method-assign]
        return spec
