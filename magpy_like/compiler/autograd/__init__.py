"""Forward and backward passes: AOTAutograd, and the node of a compiled pass in autograd's graph."""
