"""What eval.py can be told, and what it refuses."""

from __future__ import annotations

import pytest

from minillm.errors import ConfigError
from minillm.evaluation.settings import CostSettings, LengthPerplexitySettings, compose_eval, default_config


def test_the_shipped_files_say_what_the_types_default_to() -> None:
    config = compose_eval(["runs=[a,b]"])
    assert config.runs == ("a", "b")
    assert config.suites == ("length_perplexity", "attention", "cost")
    assert config.suite.length_perplexity == LengthPerplexitySettings()
    assert config.suite.cost == CostSettings()
    assert default_config(["a", "b"], config.suites) == config


def test_one_run_needs_no_list() -> None:
    assert compose_eval(["runs=outputs/*", "suites=cost"]).runs == ("outputs/*",)


def test_a_suite_is_told_through_its_own_key() -> None:
    config = compose_eval(["runs=a", "suite.length_perplexity.lengths=[1,32]", "suite.cost.seconds=0.5"])
    assert config.suite.length_perplexity.lengths == (1, 32)
    assert config.suite.cost.seconds == 0.5


def test_a_path_may_hold_any_character_when_it_is_not_typed_at_a_shell() -> None:
    assert default_config(["my runs/a=b,c [1]"], ["cost"]).runs == ("my runs/a=b,c [1]",)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([], "runs: nothing to evaluate"),
        (["runs=a", "suites=[]"], "suites: none given"),
        (["runs=a", "suites=[costs]"], "unknown suite 'costs'. Did you mean 'cost'?"),
        (["runs=a", "lengths=[1]"], "lengths: unknown key"),
        (["runs=a", "suite.cost.second=1"], "suite.cost.second: unknown key. Did you mean"),
        (["runs=a", "suite.cost.lengths=[2,1]"], "suite.cost.lengths = [2, 1]: must be rising"),
        (["runs=a", "suite.length_perplexity.lengths=[0,1]"], "must be rising multiples"),
        (["runs=a", "suite.length_perplexity.lengths=[2,4]"], "must begin with 1"),
        (["runs=a", "suite.length_perplexity.lengths=[1.5]"], "expected a whole number"),
        (["runs=a", "suite.length_perplexity.protocols=[sliding]"], "'sliding' is not allowed"),
        (["runs=a", "suite.length_perplexity.protocols=[strided,strided]"], "each once"),
        (["runs=a", "suite.length_perplexity.stride=0"], "suite.length_perplexity.stride = 0: must be 1 or more"),
        (["runs=a", "suite.cost.seconds=0"], "suite.cost.seconds = 0.0: must be above 0"),
        (["runs=a", "device=gpu"], "device: 'gpu' is not allowed. Did you mean"),
        (["runs=a", "num_threads=0"], "num_threads = 0: must be 1 or more"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_honoured_is_refused_by_name(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        compose_eval(overrides)
    assert message.split(" Did you mean")[0] in str(error.value)
    if "Did you mean" in message:
        assert "Did you mean" in str(error.value)
