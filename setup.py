"""Packages of the distribution: `annotations/` is installed as `magpy_like._annotations`.

pyproject.toml cannot map a folder to a package name. All other metadata is there.
"""

from setuptools import find_packages, setup

CODE = find_packages(
    include=["magpy_like", "magpy_like.*", "paritybench_runner", "paritybench_runner.*"]
)

setup(
    packages=[*CODE, "magpy_like._annotations"],
    package_dir={"magpy_like._annotations": "annotations"},
    package_data={
        "magpy_like._annotations": ["**/*.yaml"],
        "*": ["*.c", "*.cpp", "*.h", "*.html", "py.typed"],
    },
)
