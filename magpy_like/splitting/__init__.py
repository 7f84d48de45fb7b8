"""Splits: states of active frames, continuations, dynamic instructions (MagPy, section 5.3.1).

``frame_state``: the state of an active frame, as captured and as a continuation needs it
``pending_instructions``: instructions that continue with the result of an inner frame
``pending_calls``, ``pending_binary_operators``: the same for calls and for binary operators
``callee_matching``: recognition of the inner frame's function among those that an instruction may
call ``frame_layout``: a frame chain as a layout and a flat list of values ``continuation``: the
rest of a program after a split ``continuation_functions``: functions that run the rest of a frame
``continuation_code``: their code objects: a prefix that restores the frame, and the body
``prefix_line_table``: line table entries of the prefix ``native_instruction``: native execution of
the instruction that a frame is about to execute ``dynamic_instruction``: dynamic instructions,
prepared once per layout ``suspended_generators``: suspended generators, captured and rebuilt
``tracebacks``: tracebacks without the frames' local variables
"""
