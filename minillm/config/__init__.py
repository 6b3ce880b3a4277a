"""The door: YAML goes in, one frozen `Config` with a tuple of `LayerSpec`s comes out, and no raw YAML goes further."""
