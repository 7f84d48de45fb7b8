"""Guard generation (MagPy, section 4.2): the conditions under which a record serves a call.

- ``guard_builder``: the guard of one record, subject by subject
- ``guarded_variables``: variables in the guard, fixed or fetched, and access paths to them
- ``conditions``: one condition as data, and the kinds of conditions
- ``guard_writer``: source text of the guard, names and labels of variables
- ``fetched_variables``: conditions on variables that each call brings
- ``fixed_objects``: conditions on objects that the record holds
- ``lifted_conditions``: conditions on lifted values
- ``size_conditions``: bounds and relations of sizes that may vary
- ``distinctness_conditions``: conditions on distinct objects and on shared memory
- ``inner_gradients``: conditions on histories and hooks of tensors, for inner gradients
- ``process_state_conditions``: conditions on torch's modes and on other process-wide state
- ``look_up_aliasing``: which containers in results of cached functions are one object
- ``abstract_classes``: answers of abstract classes about others
- ``guard_checks``: functions that generated guards call
- ``expected_values``: sizes and numbers of the recorded run, for the analysis of misses
"""
