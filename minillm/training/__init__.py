"""From a configuration to a trained run: identity and folder, processes, the Lightning loop, checkpoints, resuming."""
