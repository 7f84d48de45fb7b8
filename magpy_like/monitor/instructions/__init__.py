"""One rule per kind of instruction: what it reads and writes (MagPy, section 5.3).

``annotations/opcodes.yaml`` says which instruction is told to which rule, by room and name. A rule
runs before its instruction and gets the operand stack, bottom first. It may return a token,
``(finish, payload)``; ``finish(run, payload, result)`` is called when the instruction has put its
result on the stack.
"""
