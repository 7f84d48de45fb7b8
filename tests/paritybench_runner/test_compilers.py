"""The table of compilers of the runner."""

import torch

from magpy_like.torch_compat import dynamo
from paritybench_runner.compilers import COMPILERS


def test_built_in_compiler_runs_as_a_dynamo_backend_without_installation(monkeypatch):
    registered = dynamo.lookup_backend

    def lookup_without_entry_points(name):
        if name == "magpy":
            raise LookupError("a package that is on the path but not installed has no entry points")
        return registered(name)

    monkeypatch.setattr(dynamo, "lookup_backend", lookup_without_entry_points)
    compiled = COMPILERS["dynamo"]("magpy").compile(torch.nn.ReLU())
    assert compiled(torch.tensor([-1.0, 2.0])).tolist() == [0.0, 2.0]
    assert compiled.graphs == 1
