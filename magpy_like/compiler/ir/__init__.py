"""The loop IR: define-by-run loop bodies over SymPy index expressions (PyTorch 2, section 4.3).

``loop_ir``: buffers, operations (loop nests and ATen calls), and lazy tensors (boxes)
``ops``: the operations of a loop body, and their recording
``index_arithmetic``: addresses, sizes and strides as SymPy expressions
``size_names``: one symbol for each size that is computed from others
"""
