"""Facts about code objects, computed from their bytecode alone.

``supported_versions``: the interpreters whose frames the monitor can read
``per_code_cache``: facts about code objects, kept as long as these
``instruction_stream``: instructions with offsets, jump targets and stack effects
``tested_jumps``: the jumps by which truth tests decide
``exception_table``: the exception table, decoded and encoded
``stack_entry_kinds``: the kinds of the entries on the operand stack
``live_locals``: live local variables
``local_uses``: locals followed from their loads to the instructions that use them
``post_dominators``: join points of branches, and reachability
``instruction_facts``: other facts: cleanup in generators, in-place operators, calls
"""
