"""State of torch: modes, devices, random generators, autograd nodes, tensor metadata."""
