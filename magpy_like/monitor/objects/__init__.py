"""Python objects in a recording: reads, inspections and changes of external variables.

``variables``: the node of each variable, its access path, and which objects are new.
``external_reads``: reads of external variables, each with the facts that the guard checks.
``inspections``: lengths, keys, comparisons and other partial reads of external variables.
``mutations``: changes of external variables.
``access_paths``: following relations on the program's own objects.
``containers``: contents of containers, whatever methods a subclass has.
``attributes``: the locations that an attribute access reads.
``class_lookup``: look-ups in classes, and attributes set on them.
``class_creation``: look-ups that the creation of a class makes.
``iterators``: external native iterators, whose next elements a guard can find.
``finalizers``: objects whose destruction the program observes.
``object_addresses``: memory addresses in ``id``, hashes, the order of sets, and texts.
``exc_info``: the exception that the program is handling.
``object_replacement``: replacing one object by another wherever the program refers to it.
``locks``: locks that no other thread can wait for.
``loop_written_locations``: locations that the iterations of a loop write to.
"""
