"""Benchmarks against eager mode, Dynamo and Inductor; each prints a table to stdout.

Each module is a command, `python -m benchmarks.NAME`; `--help` lists its options. In reading order:

- ``demo``: captured graphs and speed of one model of the zoo (`make demo`); no goal
- ``overhead``: a matched call without its graph; goal: at most a third of Dynamo's time
- ``scaling``: matched and first calls by the size of the program; goal: proportional at most
- ``capture``: the first call without compilation; goal: no slower than Dynamo
- ``kernels``: single kernels by bandwidth; goal: within 15 % of a plain copy
- ``scans``: running sums and maxima, compared with eager mode; no goal
- ``cpu``: models of the zoo on the CPU; goals: Inductor's speed, half of its time in first calls
- ``dynamic``: inputs that vary from call to call; goal: faster than Dynamo on each workload
- ``gpu``: kernels and models on one GPU; goal for kernels as in ``kernels``

Shared by them:

- ``paired_timing``: interleaved timing of candidates, medians and ratios, text tables
- ``zoo_models``: models of the zoo, eager or compiled, and the test for wrong results
"""
