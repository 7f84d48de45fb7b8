"""The tests of compiled programs and gradients, repeated for the Triton printer."""

import subprocess
import sys

import pytest
import torch

from tests.compiler import test_programs as cpu_tests
from tests.compiler.autograd.test_gradients import *  # noqa: F403
from tests.compiler.test_programs import *  # noqa: F403

# Slow to interpret; test_kernels.py tests long rows and scans itself.
del test_large_parallel_sum_is_accurate  # noqa: F821
del test_scans_of_every_layout_equal_eager  # noqa: F821
# Unlike the CPU, a GPU truncates floats out of range, and raises no errors.
del test_out_of_range_floats_convert_to_integers_as_in_eager  # noqa: F821
del test_value_errors_equal_eager  # noqa: F821
del test_invalid_indices_raise_eagers_errors  # noqa: F821

pytestmark = pytest.mark.usefixtures("printed")

OUT_OF_RANGE = """
import torch
from tests.compiler.programs import compiled
import torch.nn.functional as F
compiled(lambda w, i: F.embedding(i, w))(torch.ones(6, 10).cuda(), torch.tensor([3, 25]).cuda())
torch.cuda.synchronize()
"""


def test_embedding_index_out_of_range_raises(device):
    if device.type == "cpu":
        cpu_tests.test_embedding_index_out_of_range_raises()
        return
    # The process cannot use the device afterwards, as after eager's check.
    done = subprocess.run([sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True)
    assert done.returncode != 0 and "device-side assert" in done.stderr


def test_operators_without_lowering_run_through_aten(device):
    if device.type == "cuda":  # a scan is lowered for the CPU only
        cpu_tests.test_operators_without_lowering_run_through_aten()
    cpu_tests.same(lambda x: torch.linalg.qr((x @ x.t()).exp() + 1)[1].abs() + 1, cpu_tests.X)
