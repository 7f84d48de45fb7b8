"""Runner for a corpus of PyTorch programs: each in eager mode and through several compilers.

The command is `python -m paritybench_runner --corpus PATH --out DIR`. In reading order:

- ``cli``: the command line and the course of a run
- ``corpus``: corpus files and their test cases
- ``supervisor``: one process per file, with limits of time and memory
- ``worker``: the process of one file, which reports each step
- ``evaluate``: one test in eager mode, and through a compiler in lockstep with eager mode
- ``compilers``: magpy_like, Dynamo and TorchScript behind one interface
- ``result_comparison``: equality of everything that two runs of a program leave behind
- ``rounding``: spread of a program's results under other rounding, which bounds the comparison
- ``dynamism``: reads of tensor values in an eager run, which make a program dynamic
- ``run_results``: `run.json` and `results.jsonl`, classes of tests and files, groups of failures
- ``report``: `summary.md`, `report.html`, comparison of two runs
- ``preload``: imports and warm-up of the process from which files' processes are forked
- ``shims``: names and libraries that programs of 2017 to 2023 expect
- ``paritybench_helpers``: module that ParityBench's generated files import
"""
