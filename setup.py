"""Packages of the distribution, and the native helper in wheels.

pyproject.toml cannot map a folder to a package name: `annotations/` is installed as
`magpy_like._annotations`. All other metadata is there.

A wheel that is built where torch is installed (`pip wheel --no-build-isolation`) carries the native
helper for this Python and this torch; `.ci/build_wheel` makes one for several versions of torch.
Without torch or a compiler a wheel carries none, and the helper is compiled on first use.
"""

import runpy
import sys
from pathlib import Path

from setuptools import Extension, find_packages, setup

NATIVE = Path("magpy_like/native")
CODE = find_packages(
    include=["magpy_like", "magpy_like.*", "paritybench_runner", "paritybench_runner.*"]
)


def helper():
    """The names of `helper_sources.py`; None without torch, or for other builds than wheels."""
    if "bdist_wheel" not in sys.argv:
        return None
    try:
        return runpy.run_path(str(NATIVE / "helper_sources.py"))
    except ImportError:
        return None


def extensions(names):
    """The helper's modules. They are optional: a wheel without them works."""
    package = ".".join([*NATIVE.parts, *names["prebuilt_folder"]().parts])
    for module in names["MODULES"]:
        torch = module.uses_torch
        yield Extension(
            f"{package}._magpy_{module.name}",
            [str(NATIVE / f"{module.source}.cpp")],
            language="c++",
            extra_compile_args=list(names["FLAGS"]),
            include_dirs=[*names["INCLUDES"], *(names["TORCH_INCLUDES"] if torch else ())],
            define_macros=list(names["TORCH_DEFINES"] if torch else ()),
            library_dirs=[names["TORCH_LIBRARY_FOLDER"]] if torch else [],
            libraries=list(names["TORCH_LIBRARIES"] if torch else ()),
            optional=True,
        )


HELPER = helper()

setup(
    packages=[*CODE, "magpy_like._annotations"],
    package_dir={"magpy_like._annotations": "annotations"},
    package_data={
        "magpy_like._annotations": ["**/*.yaml"],
        "*": ["*.c", "*.cpp", "*.h", "*.html", "py.typed"],
    },
    ext_modules=list(extensions(HELPER)) if HELPER is not None else [],
)
