"""Hugging Face families, one file each. Every module in this folder is imported here, and registers its family."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
