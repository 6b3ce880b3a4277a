"""Suite `harness`: lm-evaluation-harness in this process, on any run; and our tasks as YAML for any of its models.

    lm_eval --model hf --model_args pretrained=DIR --tasks minillm_ruler \
        --include_path "$(python -c 'from minillm.evaluation.harness import TASKS; print(TASKS)')"
"""

from pathlib import Path

TASKS = Path(__file__).parent / "tasks"
"""The folder for `--include_path`."""
