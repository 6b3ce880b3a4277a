"""The model works where only torch and jaxtyping are installed: no Hydra, Lightning, datasets."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, sys

ABSENT = {"hydra", "omegaconf", "lightning", "pytorch_lightning", "wandb", "datasets", "tokenizers", "transformers",
          "yaml", "rich", "filelock", "beartype"}

class NotInstalled:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NotInstalled())

import torch
import minillm
import minillm.position
from minillm.config.expand import Heads, expand
from minillm.config.schema import ModelConfig

plan = {
    "kinds": {"local": {"position": {"scheme": "rope", "theta": 1e4}, "window": 4}, "global": {"position": "nope"}},
    "pattern": ["local", "global"],
}
layers, _ = expand(plan, {}, 4, Heads(4, 2, 8), 32)
config = ModelConfig(vocab_size=32, hidden_size=32, intermediate_size=64, num_hidden_layers=4,
                     max_position_embeddings=32, layers=layers)
model = minillm.build_model(config, seed=0)
tokens = torch.arange(12).unsqueeze(0)
model.loss(tokens[:, :-1], tokens[:, 1:]).backward()
print(json.dumps({
    "logits": list(model(tokens).shape),
    "new": len(minillm.generate(model, [[1, 2, 3]], max_new_tokens=4, seed=0)[0]),
    "parameters": minillm.cost(config, 32).parameters == sum(p.numel() for p in model.parameters()),
}))
"""


def test_a_model_is_built_trained_and_sampled_with_torch_and_jaxtyping_alone() -> None:
    run = subprocess.run([sys.executable, "-W", "ignore", "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    got = json.loads(run.stdout)
    assert got["logits"] == [1, 12, 32]
    assert got["new"] in (4, 7)
    assert got["parameters"]
