"""What connects a framework that makes the module itself with ``compile``.

Each module imports its framework, and is imported by programs that use it: ``magpy_like`` imports
none of them.

- ``lightning``: a callback that compiles the ``LightningModule``
"""
