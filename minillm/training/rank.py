"""One process of a run: ``python -m minillm.training.rank RUN_DIR REPORTS PARENT [CHECKPOINT]``.

`minillm.training.launch` starts it, once per device, with torchrun's environment (RANK, WORLD_SIZE, MASTER_ADDR, ...).
The settings are those in RUN_DIR/config.yaml. How it ended goes to REPORTS/rank-N.json: the final numbers, or what the
user did wrong, or a traceback; the exit code alone could not say which. Ranks beside the first write to RUN_DIR/logs/.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def die_with(parent: int) -> None:
    """Make this process end when process `parent`, which started it, ends in any way: SIGKILL leaves no orphans.

    Linux does it at once (a parent-death signal); elsewhere a thread looks every second.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    else:

        def watch() -> None:
            while os.getppid() == parent:
                time.sleep(1)
            os._exit(1)

        threading.Thread(target=watch, daemon=True).start()
    if os.getppid() != parent:  # it ended before the line above
        os._exit(1)


def main(argv: list[str]) -> int:
    """Train as this rank; returns the exit code."""
    run_dir, reports, parent = Path(argv[0]), Path(argv[1]), int(argv[2])
    resume_from = Path(argv[3]) if len(argv) > 3 else None
    die_with(parent)
    rank = int(os.environ["RANK"])
    if rank > 0:
        _write_to(run_dir / "logs" / f"rank-{rank}.log")
    if os.environ["WORLD_SIZE"] == "1":
        _forget_the_launcher()

    # Imported here: these take seconds, in which the parent may already have gone.
    from minillm.config.parse import parse_config
    from minillm.errors import Interrupted, MinillmError
    from minillm.training.run_folder import read_yaml
    from minillm.training.worker import train_rank

    def report(**facts: Any) -> None:
        text = json.dumps({"rank": rank, "time": time.time(), **facts})
        beside = reports / f".rank-{rank}.json"
        beside.write_text(text)
        beside.rename(reports / f"rank-{rank}.json")

    try:
        metrics = train_rank(parse_config(read_yaml(run_dir / "config.yaml")), run_dir, resume_from)
    except MinillmError as error:
        report(user_error=str(error))
        return 2
    except Interrupted as stop:
        report(signum=stop.signum)
        return stop.exit_code
    except Exception:
        traceback.print_exc()
        report(traceback=traceback.format_exc())
        return 1
    report(metrics=metrics)
    return 0


def _write_to(path: Path) -> None:
    """Send this process's output, that of its libraries included, to the end of the file `path`."""
    path.parent.mkdir(exist_ok=True)
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
        os.dup2(log, stream.fileno())
    os.close(log)


def _forget_the_launcher() -> None:
    """A process on its own, as the jobs of a sweep are, needs no process group: it trains as a single run does."""
    for name in [n for n in os.environ if n.startswith("TORCHELASTIC_")] + ["RANK", "LOCAL_RANK", "WORLD_SIZE"]:
        os.environ.pop(name, None)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
