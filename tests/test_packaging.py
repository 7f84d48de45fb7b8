"""The annotations and all code are found from a checkout and from an installed wheel."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from magpy_like.annotation.location import annotations_dir

ROOT = Path(__file__).parent.parent
PACKAGES = [name for name in ("magpy_like", "paritybench_runner") if (ROOT / name).is_dir()]


def yaml_files(folder):
    return sorted(path.relative_to(folder) for path in folder.rglob("*.yaml"))


def test_a_checkout_reads_its_own_annotations():
    assert annotations_dir() == ROOT / "annotations"
    assert yaml_files(annotations_dir())


def test_every_folder_of_code_is_a_package():
    folders = {path.parent for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert [str(f) for f in folders if not (f / "__init__.py").is_file()] == []


@pytest.mark.full
def test_a_wheel_carries_the_annotations_and_all_code(tmp_path):
    def pip(*arguments):
        subprocess.run([sys.executable, "-m", "pip", "--quiet", *arguments], check=True)

    # Builds from what git knows, so that nothing else can slip into the wheel.
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "x"], cwd=source, input=archive.stdout, check=True)
    pip("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, source)
    pip("install", "--no-deps", "--target", site, *tmp_path.glob("*.whl"))

    script = (
        f"import sys; sys.path[:0] = {[str(site), str(Path(torch.__file__).parents[1])]}\n"
        "from magpy_like.annotation.location import annotations_dir; print(annotations_dir())\n"
        "from magpy_like.annotation import lookup; assert lookup(len) and lookup(list.append)"
    )
    # Without site, so that an editable install of this very checkout is not found instead.
    command = [sys.executable, "-S", "-c", script]
    report = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True)
    installed = Path(report.stdout.strip())
    assert installed == site / "magpy_like" / "_annotations"
    assert yaml_files(installed) == yaml_files(source / "annotations")
    for package in PACKAGES:
        for kind in ("*.py", "*.cpp", "*.h"):
            sources = {p.relative_to(source) for p in (source / package).rglob(kind)}
            carried = {p.relative_to(site) for p in (site / package).rglob(kind)}
            assert sources - carried == set()


@pytest.mark.parametrize("version", [(3, 10, 14), (3, 13, 0), (3, 14, 1)])
def test_an_interpreter_whose_frames_are_not_known_is_refused(version):
    script = f"import sys; sys.version_info = {version}; import magpy_like"
    ran = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 1
    said = ran.stderr.strip().splitlines()[-1]
    assert said.startswith("ImportError: magpy_like needs CPython 3.11 or 3.12")
    assert said.endswith(".".join(map(str, version)))
