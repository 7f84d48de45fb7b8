"""The tests of compiled programs and gradients, repeated for the Triton printer."""

import subprocess
import sys

import pytest
import torch

from tests.compiler import test_programs as specified
from tests.compiler.autograd.test_gradients import *  # noqa: F403
from tests.compiler.test_programs import *  # noqa: F403

# Slow to interpret; test_kernels.py tests long rows and scans itself.
del test_a_large_sum_is_shared_among_threads_and_accurate  # noqa: F821
del test_scans_in_every_layout  # noqa: F821
# Unlike the CPU, a GPU truncates floats out of range, and raises no errors.
del test_floats_that_do_not_fit_become_eagers_integers  # noqa: F821
del test_errors_of_values_are_eagers  # noqa: F821
del test_a_place_that_is_not_there_raises_what_eager_raises  # noqa: F821

pytestmark = pytest.mark.usefixtures("printed")

OUT_OF_RANGE = """
import torch
from tests.compiler.programs import compiled
import torch.nn.functional as F
compiled(lambda w, i: F.embedding(i, w))(torch.ones(6, 10).cuda(), torch.tensor([3, 25]).cuda())
torch.cuda.synchronize()
"""


def test_an_index_out_of_range_raises(device):
    if device.type == "cpu":
        specified.test_an_index_out_of_range_raises()
        return
    # The process cannot use the device afterwards, as after eager's check.
    done = subprocess.run([sys.executable, "-c", OUT_OF_RANGE], capture_output=True, text=True)
    assert done.returncode != 0 and "device-side assert" in done.stderr


def test_operators_without_a_lowering_run_through_aten_one_by_one(device):
    if device.type == "cuda":  # a scan is lowered for the CPU only
        specified.test_operators_without_a_lowering_run_through_aten_one_by_one()
    specified.same(lambda x: torch.linalg.qr((x @ x.t()).exp() + 1)[1].abs() + 1, specified.X)
