"""Packaging: a checkout, a wheel and an editable install contain annotations and all code."""

import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from magpy_like.annotation.annotation_files import annotations_dir

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("magpy_like", "paritybench_runner") if (ROOT / name).is_dir()]


def yaml_files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.yaml"))


def test_checkout_reads_its_own_annotations():
    assert annotations_dir() == ROOT / "annotations"
    assert yaml_files(annotations_dir())


def test_every_folder_of_code_is_a_package():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").is_file()] == []


def pip(*arguments):
    subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)


@pytest.fixture
def source(tmp_path):
    """A checkout of the tracked files only, so that a build from it contains no others."""
    folder = tmp_path / "source"
    folder.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "x"], cwd=folder, input=archive.stdout, check=True)
    return folder


LOOKUPS = (
    "from magpy_like.annotation.annotation_files import annotations_dir; print(annotations_dir())\n"
    "from magpy_like.annotation import lookup; assert lookup(len) and lookup(list.append)\n"
)


def test_editable_install_finds_the_annotations_of_its_checkout(source, tmp_path):
    """The install is built by setuptools, without pip, a virtual environment or network."""
    site = tmp_path / "site"
    make = (
        "from setuptools import build_meta; import sys\n"
        "print(build_meta.build_editable(sys.argv[1]))"
    )
    command = [sys.executable, "-c", make, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    script = (
        f"import site, sys; site.addsitedir({str(site)!r})\n"
        f"sys.path.append({str(Path(torch.__file__).parents[1])!r})\n{LOOKUPS}"
        "import magpy_like; print(magpy_like.__file__)"
    )
    # Without site, so that another editable install is not found instead.
    command = [sys.executable, "-E", "-S", "-c", script]
    report = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    annotations, package = map(Path, report.stdout.split())
    assert annotations == source / "annotations"
    assert package == source / "magpy_like" / "__init__.py"


@pytest.mark.full
def test_pip_installs_an_editable_checkout_into_an_environment(source, tmp_path):
    folder = tmp_path / "environment"
    venv.create(folder, system_site_packages=False, with_pip=True)
    python = folder / "bin" / "python"
    command = [python, "-m", "pip", "--quiet", "install", "--no-deps", "--editable", source]
    subprocess.run(command, check=True)
    path_setup = f"import sys; sys.path.append({str(Path(torch.__file__).parents[1])!r})\n"
    report = subprocess.run(
        [python, "-E", "-c", path_setup + LOOKUPS],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
    )
    assert Path(report.stdout.strip()) == source / "annotations"
    # An edit takes effect without another install.
    (source / "annotations" / "mine.yaml").write_text(
        "operations:\n  - namespace: binascii\n    rules:\n      - {names: [crc32], is: pure}\n"
    )
    edited = f"{path_setup}{LOOKUPS}import binascii; assert lookup(binascii.crc32).pure_closure"
    subprocess.run([python, "-E", "-c", edited], cwd=tmp_path, check=True)


def check_helper_of_the_wheel(site, tmp_path):
    """The wheel's helper is used without a compiler, and only if its identity is the process's."""
    native = site / "magpy_like" / "native"
    script = f"import sys; sys.path[:0] = {[str(site), str(Path(torch.__file__).parents[1])]}\n"
    script += "from magpy_like.native import helper_status; print(helper_status.is_loaded())"

    def is_loaded():
        cache = str(tmp_path / "empty")
        environment = {"PATH": "/nowhere", "CXX": "/nonexistent", "MAGPY_CACHE_DIR": cache}
        command = [sys.executable, "-S", "-c", script]
        done = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    assert is_loaded() == "True"
    (folder,) = (native / "prebuilt").iterdir()
    folder.rename(folder.with_name("of another torch"))
    assert is_loaded() == "False"


@pytest.mark.full
def test_wheel_contains_annotations_and_all_code(source, tmp_path):
    site = tmp_path / "site"
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source)
    pip("install", "--no-deps", "--target", site, *tmp_path.glob("*.whl"))

    script = (
        f"import sys; sys.path[:0] = {[str(site), str(Path(torch.__file__).parents[1])]}\n{LOOKUPS}"
    )
    # Without site, so that an editable install of this very checkout is not found instead.
    command = [sys.executable, "-E", "-S", "-c", script]
    report = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    installed = Path(report.stdout.strip())
    assert installed == site / "magpy_like" / "_annotations"
    assert yaml_files(installed) == yaml_files(source / "annotations")
    check_helper_of_the_wheel(site, tmp_path)
    for package in PACKAGES:
        for kind in ("*.py", "*.cpp", "*.h"):
            sources = {p.relative_to(source) for p in (source / package).rglob(kind)}
            carried = {p.relative_to(site) for p in (site / package).rglob(kind)}
            assert sources - carried == set()
