"""The language model inside a multimodal Gemma 3: refused unless asked for, then the same logits as transformers'."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import minillm
from minillm.errors import ConfigError
from tests.hub.models import COMMON, LOCAL, enlarge, ids, rope

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")


@pytest.fixture(scope="module")
def multimodal() -> Any:
    ropes = {"sliding_attention": rope(100.0), "full_attention": rope(10000.0, rope_type="linear", factor=8.0)}
    text = {**COMMON, **LOCAL, "sliding_window_pattern": 3, "query_pre_attn_scalar": 14, "rope_parameters": ropes}
    vision = {
        "model_type": "siglip_vision_model", "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
        "num_attention_heads": 2, "image_size": 28, "patch_size": 14,
    }  # fmt: skip
    made = transformers.Gemma3Config(
        text_config=text, vision_config=vision, mm_tokens_per_image=1, image_token_index=40, boi_token_index=38,
        eoi_token_index=39,
    )  # fmt: skip
    return enlarge(transformers.Gemma3ForConditionalGeneration(made))


@pytest.fixture(scope="module")
def folder(multimodal: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("gemma3")
    multimodal.save_pretrained(out)
    return out


def test_it_is_refused_by_name_unless_its_text_part_is_asked_for(multimodal: Any, folder: Path) -> None:
    for source in (multimodal, folder):
        with pytest.raises(ConfigError, match=r"vision_config: gemma3 reads images.*text_only=True"):
            minillm.hub.from_transformers(source)


def test_a_cap_on_logits_that_the_whole_does_not_apply_is_refused() -> None:
    values = {"model_type": "gemma3", "text_config": {"final_logit_softcapping": 30.0}}
    with pytest.raises(ConfigError, match=r"final_logit_softcapping = 30.0: .*caps no logits"):
        minillm.hub.read_plan(values, text_only=True)


@torch.no_grad()
@pytest.mark.parametrize("names", ["as loaded", "as saved", "as older files have them"])
def test_its_text_part_computes_what_the_whole_does_on_text(
    names: str, multimodal: Any, folder: Path, tmp_path: Path
) -> None:
    source: Any = multimodal if names == "as loaded" else folder
    if names == "as older files have them":
        state = safetensors.load_file(folder / "model.safetensors")
        old = {
            name.replace("model.language_model.", "language_model.model.").replace("model.vision", "vision"): tensor
            for name, tensor in state.items()
        }
        assert any(name.startswith("language_model.model.layers.") for name in old | state)
        safetensors.save_file(old, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text((folder / "config.json").read_text())
        source = tmp_path
    model = minillm.hub.from_transformers(source, text_only=True)
    tokens = ids(2, 120).clamp(max=37)  # the ids above stand for images
    assert (model(tokens) - multimodal(tokens).logits).abs().max() < 1e-4
    assert minillm.hub.to_transformers(model).config.model_type == "gemma3_text"
