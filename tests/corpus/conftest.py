# The files here are programs for the corpus runner; `tests/paritybench_runner` runs them.
collect_ignore_glob = ["test_*.py"]
