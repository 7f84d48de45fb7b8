"""A stub of the CUDA driver that records launches.

The address of a function is that of its layout: the number of parameters, then the bytes of each.
So the stub reads what the driver would read of a kernel with these parameters.
"""

import ctypes
import struct
from dataclasses import dataclass

from magpy_like import native
from magpy_like.compiler.runtime import native_launch
from magpy_like.disk_cache.cpp_compiler import CppSource, compile_cpp_many

SOURCE = r"""
#include <cstring>

struct Launch {
  void *function;
  unsigned grid[3], block[3], shared_bytes;
  void *stream;
  unsigned char values[64][8];
};

extern "C" {
Launch launches[256];
int count = 0, result = 0;
void *context = (void *)0xc0;

int cuLaunchKernel(int *function, unsigned x, unsigned y, unsigned z, unsigned a, unsigned b,
                   unsigned c, unsigned shared_bytes, void *stream, void **parameters,
                   void **extra) {
  if (result || extra || count == 256) return result ? result : 1;
  Launch &launch = launches[count++];
  launch = Launch{function, {x, y, z}, {a, b, c}, shared_bytes, stream, {}};
  for (int i = 0; i < function[0]; i++) memcpy(launch.values[i], parameters[i], function[1 + i]);
  return 0;
}
int cuCtxGetCurrent(void **current) { *current = context; return 0; }
int cuGetErrorName(int, const char **text) { *text = "CUDA_ERROR_STUBBED"; return 0; }
int cuGetErrorString(int, const char **text) { *text = "the stub refuses"; return 0; }
}
"""
CONTEXT = 0xC0


class _Launch(ctypes.Structure):
    _fields_ = (
        ("function", ctypes.c_uint64), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared_bytes", ctypes.c_uint), ("stream", ctypes.c_uint64),
        ("values", (ctypes.c_ubyte * 8) * 64),
    )  # fmt: skip


@dataclass
class Launch:
    """A recorded launch; ``parameters`` holds the bytes of each."""

    function: int
    grid: tuple[int, ...]
    block: tuple[int, ...]
    shared_bytes: int
    stream: int
    parameters: list[bytes]

    def values(self, letters: str) -> list[float]:
        """The parameters as numbers of these types of ``struct``."""
        return [struct.unpack("=" + c, p)[0] for c, p in zip(letters, self.parameters, strict=True)]


class DriverStub:
    """The stub as the helper's driver, until :meth:`close`."""

    def __init__(self) -> None:
        (path,) = compile_cpp_many([CppSource(SOURCE, "cuda_driver_stub")])
        self.path = str(path)
        self.library = ctypes.CDLL(str(path))
        self._layouts: dict[int, ctypes.Array[ctypes.c_int]] = {}
        self.set(count=0, result=0)
        self.set_context(CONTEXT)
        assert native.open_driver(self.path)

    def close(self) -> None:
        native.open_driver(native_launch.DRIVER)

    def set(self, **values: int) -> None:
        for name, value in values.items():
            ctypes.c_int.in_dll(self.library, name).value = value

    def set_context(self, context: int) -> None:
        ctypes.c_uint64.in_dll(self.library, "context").value = context

    def function(self, letters: str) -> int:
        """The address of a function with parameters of these types."""
        layout = (ctypes.c_int * (1 + len(letters)))(len(letters), *map(struct.calcsize, letters))
        address = ctypes.addressof(layout)
        self._layouts[address] = layout
        return address

    @property
    def launches(self) -> list[Launch]:
        count = ctypes.c_int.in_dll(self.library, "count").value
        return [self._launch(k) for k in (_Launch * 256).in_dll(self.library, "launches")[:count]]

    def _launch(self, k: _Launch) -> Launch:
        number, *widths = self._layouts[k.function]
        parameters = [bytes(k.values[i])[: widths[i]] for i in range(number)]
        return Launch(
            k.function, tuple(k.grid), tuple(k.block), k.shared_bytes, k.stream or 0, parameters
        )
