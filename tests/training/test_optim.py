"""Which parameters decay, and clipping by the norm of all gradients together."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from minillm.config.schema import Config, OptimConfig
from minillm.model.decoder import build_model
from minillm.training.optim import clip_gradients, make_optimizer, parameter_groups
from tests.model.small import config


@pytest.mark.bug("B070")
@pytest.mark.parametrize("block", ["standard", "gpt2", "gemma3"])
def test_every_parameter_is_listed_once_and_only_matrices_decay(tiny: Callable[..., Config], block: str) -> None:
    model = build_model(tiny("model=rope_qknorm", f"block={block}").model)
    optimizer = make_optimizer(model, OptimConfig("adamw", lr=1.0, weight_decay=0.1))
    listed = [(parameter, group["weight_decay"]) for group in optimizer.param_groups for parameter in group["params"]]
    assert len({id(p) for p, _ in listed}) == len(listed) == len(list(model.parameters()))
    names = {id(p): name for name, p in model.named_parameters()}
    assert any("norm" in names[id(p)] for p, decay in listed if decay == 0.0)
    for parameter, decay in listed:
        assert decay == (0.1 if parameter.ndim >= 2 else 0.0), names[id(parameter)]


def test_a_tied_weight_is_listed_once() -> None:
    model = nn.ModuleList([nn.Embedding(5, 3), nn.Linear(3, 5, bias=False)])
    model[1].weight = model[0].weight
    (matrices, rest) = parameter_groups(model, 0.1)
    assert len(matrices["params"]) == 1
    assert rest["params"] == []


def test_a_model_without_vectors_has_one_group() -> None:
    assert len(make_optimizer(nn.Linear(2, 2, bias=False), OptimConfig("adamw", lr=1.0)).param_groups) == 1


def test_the_update_is_fused() -> None:
    assert make_optimizer(nn.Linear(2, 2), OptimConfig("adamw", lr=1.0)).defaults["fused"]


@pytest.mark.parametrize("max_norm", [0.5, 100.0, None], ids=["clipped", "small enough", "off"])
def test_clipping_scales_all_gradients_by_their_joint_norm(max_norm: float | None) -> None:
    parameters = [nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(3))]
    parameters[0].grad, parameters[1].grad = torch.tensor([2.0, 4.0]), torch.tensor([4.0])  # the third has none
    assert clip_gradients(parameters, max_norm) == pytest.approx(6.0)
    scale = 0.5 / 6 if max_norm == 0.5 else 1.0
    assert torch.allclose(parameters[0].grad, scale * torch.tensor([2.0, 4.0]))
    assert torch.allclose(parameters[1].grad, scale * torch.tensor([4.0]))


def test_offsets_and_scales_of_position_and_of_shared_queries_are_not_decayed() -> None:
    made = config({"shared_qk": True, "sink_logits": True}, {"position": "transformer_xl"}, {"position": "t5"})
    model = build_model(made)
    names = {id(p): name for name, p in model.named_parameters()}
    _, free = parameter_groups(model, 0.1)
    kept = {names[id(p)].split(".", 2)[-1] for p in free["params"]}
    assert {f"attention.shared_qk.{p}" for p in ("q_weight", "q_bias", "k_weight", "k_bias")} <= kept
    assert {"attention.sinks", "attention.position.u", "attention.position.v"} <= kept
