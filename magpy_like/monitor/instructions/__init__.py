"""One rule for each kind of instruction: its reads and writes (MagPy, section 5.3).

``annotations/opcodes.yaml`` names the rule of each instruction as ``module.function``. A rule runs
before its instruction and receives the operand stack, bottom first. It may return a token
``(finish, payload)``; ``finish(context, payload, result)`` runs when the instruction has put its
result on the stack.

``rule_table``: the table of rules for the running Python version.
``step``: an instruction that is about to run, and the token that a rule returns.
``name_instructions``: arguments, global names and closure variables.
``attribute_instructions``: attributes.
``item_instructions``: elements of containers, and slices.
``arithmetic_instructions``: arithmetic, comparisons, membership and identity.
``truth_tests``: jumps on a value's truth.
``iteration_instructions``: iteration and unpacking.
``call_instructions``: calls and context managers.
``building_instructions``: construction of containers, functions and texts.
``import_instructions``: imports.
``pattern_matching``: ``match`` statements.
``unsupported_instructions``: instructions that need no rule, and those that split the program.
"""
