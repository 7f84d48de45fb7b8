"""Runs a ParityBench-style corpus of PyTorch programs through compilers and says what became of it.

The command is `python -m paritybench_runner --corpus PATH --out DIR`.
"""
