"""SmolLM3: Llama with position and window chosen layer by layer, one window and one base for all (models/smollm3).

`no_rope_layers` lists, against its name, the layers that do rotate: 1 is RoPE, 0 is NoPE. Where a file has a window but
no `layer_types`, the class puts it on the NoPE layers, the opposite of RNoPE-SWA.
"""

from __future__ import annotations

from typing import Any

from minillm.config.schema import ModelConfig
from minillm.hub.family import register
from minillm.hub.llama_like import LlamaLike, first_rotated, layer_types, windows, written_types, written_window
from minillm.hub.plan import Layer
from minillm.hub.reader import Reader
from minillm.hub.rope import read_rope, write_rope


@register
class SmolLM3(LlamaLike):
    name, rank, architecture = "smollm3", 5, "SmolLM3ForCausalLM"
    mlp_bias = True
    inert = frozenset({"max_window_layers"})  # in released files; the class does not read it
    defaults = {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 11008, "num_hidden_layers": 36,
        "num_attention_heads": 16, "num_key_value_heads": 4, "max_position_embeddings": 32768, "hidden_act": "silu",
        "rms_norm_eps": 1e-6, "tie_word_embeddings": True,
    }  # fmt: skip

    def layers(self, config: Reader, depth: int, max_positions: int) -> list[Layer]:
        rope = read_rope(config, 2_000_000.0, max_positions)
        rotates = self._rotates(config, depth)
        on = config.take("use_sliding_window", bool, False)
        window = config.take("sliding_window", int | None, None)
        window = window if on else None
        by_class = ["sliding_attention" if window is not None and not r else "full_attention" for r in rotates]
        spans = windows(config, layer_types(config, depth, by_class), window)
        return [{"position": rope if r else "nope", "window": w} for r, w in zip(rotates, spans, strict=True)]

    def _rotates(self, config: Reader, depth: int) -> list[bool]:
        given = config.take("no_rope_layers", tuple[int, ...], None)
        interval = config.take("no_rope_layer_interval", int, 4)
        if not given:  # an empty list stands for the default, as null does
            return [not interval or (i + 1) % interval != 0 for i in range(depth)]
        if len(given) < depth:
            raise config.error("no_rope_layers", f"it has {len(given)} entries, num_hidden_layers = {depth}")
        if set(given) - {0, 1}:
            raise config.error("no_rope_layers", "allowed entries: 1 (the layer rotates) and 0 (NoPE)")
        return [bool(entry) for entry in given[:depth]]

    def extra(self, model: ModelConfig) -> dict[str, Any]:
        window = written_window(model)
        return {
            "rope_parameters": write_rope(first_rotated(model)),
            "no_rope_layers": [int(spec.position.scheme != "nope") for spec in model.layers],
            "use_sliding_window": window is not None,
            "sliding_window": window,
            "layer_types": written_types(model),
        }
