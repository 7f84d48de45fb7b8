"""Mock generation (MagPy, section 4.2): the code that a matching call runs.

- ``mock_builder``: the mock of one record, from its parts
- ``mock_interface``: names of inputs (fetched variables) and of the operator graph's outputs
- ``reconstruction``: new objects created again, by kind: ``container_reconstruction``,
  ``function_reconstruction``, ``iterator_reconstruction``, ``instance_reconstruction``,
  ``exception_reconstruction``
- ``instance_layout``: the native class that lays out an instance
- ``side_effects``: changes to external variables
- ``location_writes``: statements that write one location
- ``roll_back``: restored state after misspeculations and failing operators
- ``speculation_checks``: speculated values checked inside the operator graph
- ``raising_operators``: operators that may raise for other values
- ``unused_results``: unused results of such operators
"""
