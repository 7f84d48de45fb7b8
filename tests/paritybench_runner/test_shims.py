"""Shims for the imports of programs of 2017 to 2023, tested in a separate process."""

import subprocess
import sys

PROGRAM = """
from paritybench_runner import shims
import torch
original = torch.manual_seed
shims.install()

import collections, inspect, numpy, sys
import tensorflow, torchtext.data, torchaudio.transforms as transforms
from torch._six import string_classes, inf
from torch._utils import _accumulate
from _paritybench_helpers import _mock_config, _mock_layer, _fails_compile, patch_functional

assert issubclass(dict, collections.Mapping)
assert inspect.getargspec(lambda a, b: 0).args == ["a", "b"]
assert numpy.float is float and numpy.Inf == inf
assert isinstance("", string_classes) and list(_accumulate([1, 2])) == [1, 3]

class Reader(torch.utils.data.Dataset):
    field = torchtext.data.Field(lower=True)

assert callable(tensorflow.keras.layers.Dense) and callable(transforms.MelSpectrogram(16000))
assert not hasattr(tensorflow, "__path__x") and not hasattr(torchtext, "__wrapped__")

config = _mock_config(width=3)
assert config.width == 3
assert isinstance(_mock_layer(2, 3), torch.nn.Linear)
assert torch.equal(_mock_layer()(torch.tensor([-1.0, 2.0])), torch.tensor([0.0, 2.0]))
patch_functional()
assert torch.functional.relu is torch.nn.functional.relu
assert torch.nn.functional.einsum is torch.functional.einsum

draws = []
for seed in (1, 2):
    torch.manual_seed(seed)
    draws.append(torch.rand(3))
assert torch.equal(*draws)
original(1)
assert not torch.equal(torch.rand(3), draws[0])
print("done")
"""


def test_moved_names_and_missing_libraries_are_provided():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert result.stdout.strip() == "done", result.stderr
