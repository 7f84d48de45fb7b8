"""Splits: states of active frames, continuations, dynamic instructions (MagPy, section 5.3.1).

``frame_state``: the state of an active frame, as captured and as a continuation needs it
``pending_instructions``: instructions that go on with the result of an inner frame
``pending_calls``, ``pending_operators``: the same for calls, and for operators with two operands
``frame_layout``: a frame chain as a layout and a flat list of values
``continuation``: the rest of a program after a split
``resumption``: functions that run the rest of a frame
``resuming_code``: their code objects: a prefix that restores the frame, and the body
``prefix_lines``: line table entries of the prefix
``single_instruction``: native execution of the single instruction at which a frame is
``dynamic_instruction``: dynamic instructions, prepared once per layout
``suspended_generators``: suspended generators, captured and rebuilt
``tracebacks``: tracebacks without the frames' local variables
"""
