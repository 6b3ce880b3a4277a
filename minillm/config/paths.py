"""Where the YAMLs are: `conf/` beside the package in a checkout, `minillm/conf/` inside an installed wheel.

Usage: ``hydra.initialize_config_dir(str(conf_dir()))``.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from minillm.errors import MinillmError


@cache
def conf_dir() -> Path:
    """Absolute path of the folder that holds train.yaml and the config groups; MinillmError if there is none."""
    package = Path(__file__).resolve().parent.parent
    # The wheel's place comes first: beside an installed package lies site-packages, where a `conf` may be anybody's.
    places = (package / "conf", package.parent / "conf")
    for place in places:
        if (place / "train.yaml").is_file():
            return place
    raise MinillmError(
        f"The configuration files are missing: train.yaml is neither in {places[0]} nor in {places[1]}. "
        "Install minillm again, or run it from a complete checkout."
    )
