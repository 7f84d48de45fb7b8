"""Functions that run under ``torch.utils.checkpoint``.

- ``checkpoint_calls``: the calls of the native part
- ``checkpoint_runs``: the run of such a function under the monitor
"""
