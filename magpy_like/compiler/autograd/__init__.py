"""Autograd: forward and backward graphs, and compiled passes as nodes of autograd's graph.

``gradient_modes``: switches of the gradient mode, and the mode in which a graph is entered
``aot``: AOTAutograd, the joint graph and its partition (PyTorch 2, section 3.9)
``autograd_node``: the ``autograd.Function`` around a compiled forward and backward pass
``saved_values``: saved tensors, copied before they are mutated
``overwritten_saved_values``: writes of one part of a graph to another part's saved tensors
``outside_writes``: no recomputation from memory that the program may write to between the passes
``unread_saved_tensors``: writes to saved tensors that the gradients which are present do not need
``absent_gradients``: backward passes for results without a gradient
``shared_gradients``: copies of gradients in the same memory, by autograd or by the pass
``conjugate_gradients``: incoming gradients that are conjugate or negative views
``double_backward``: ``create_graph`` and batched gradients, by the program in eager mode
``deferred_weight_gradients``: one product for the weight gradients of all iterations of a loop
``backward_streams``: several GPUs and their streams
"""
