"""Selection and loading of a corpus' files and tests."""

import pytest

from paritybench_runner import corpus
from paritybench_runner.corpus import CorpusError

NET = """
import torch
class Net(torch.nn.Module):
    def __init__(self, size, bias=True):
        super().__init__()
        self.layer = torch.nn.Linear(size, 2, bias=bias)
    def forward(self, x):
        return self.layer(x)
TESTCASES = [(Net, lambda: ([3], {"bias": False}), lambda: ([torch.rand(1, 3)], {}), True)]
"""


def names(files):
    return [path.name for path in files]


@pytest.fixture
def folder(tmp_path):
    for name in ("test_b.py", "test_a.py", "helper.py", "test_c.txt"):
        (tmp_path / name).write_text(NET)
    return tmp_path


def test_files_of_a_folder_are_sorted(folder):
    assert names(corpus.discover(folder)) == ["test_a.py", "test_b.py"]


def test_checkout_has_its_files_in_generated(folder):
    (folder / "generated").mkdir()
    assert corpus.find_test_folder(folder) == folder / "generated"
    assert corpus.find_test_folder(folder / "generated") == folder / "generated"


def test_list_selects_files(folder):
    listing = folder / "list"
    listing.write_text("# the second\ntest_b.py\n\n")
    assert names(corpus.discover(folder, listing)) == ["test_b.py"]


def test_missing_files_and_folders_are_named(folder, tmp_path_factory):
    listing = folder / "list"
    listing.write_text("test_x.py\n")
    with pytest.raises(CorpusError, match=r"test_x\.py"):
        corpus.discover(folder, listing)
    with pytest.raises(CorpusError, match="no such file"):
        corpus.discover(folder, folder / "no list")
    with pytest.raises(CorpusError, match="no file contains"):
        corpus.filter_files(corpus.discover(folder), "NoSuchNet")
    with pytest.raises(CorpusError, match="no such folder"):
        corpus.find_test_folder(folder / "nowhere")
    with pytest.raises(CorpusError, match="no files"):
        corpus.discover(tmp_path_factory.mktemp("empty"))


def test_shards_partition_the_files_and_are_stable(tmp_path):
    files = [tmp_path / f"test_{number}.py" for number in range(40)]
    shards = [corpus.select_shard(files, f"{part}/3") for part in (1, 2, 3)]
    assert sorted(sum(shards, [])) == sorted(files)
    assert all(shards)
    assert set(corpus.select_shard(files[:20], "2/3")) <= set(shards[1])


@pytest.mark.parametrize("shard", ["0/2", "3/2", "a/b", "1"])
def test_invalid_shard_is_rejected(shard):
    with pytest.raises(CorpusError, match="i/n"):
        corpus.select_shard([], shard)


def test_filter_matches_part_of_a_name_or_one_test():
    assert corpus.matches_filter(None, "test_a.py", "Net")
    assert corpus.matches_filter("test_a", "test_a.py", "Net")
    assert corpus.matches_filter("Ne", "test_a.py", "Net")
    assert not corpus.matches_filter("Nets", "test_a.py", "Net")
    assert corpus.matches_filter("test_a.py::Net", "test_a.py", "Net")
    assert not corpus.matches_filter("test_a.py::Net", "test_a.py", "Network")
    assert not corpus.matches_filter("test_a.py::Net", "test_b.py", "Net")


def test_filter_skips_files_without_the_test(folder):
    (folder / "test_b.py").write_text(NET.replace("Net", "Other"))
    files = corpus.discover(folder)
    assert names(corpus.filter_files(files, "Other")) == ["test_b.py"]
    assert names(corpus.filter_files(files, "test_a.py::Net")) == ["test_a.py"]


def test_folders_are_not_files(folder):
    (folder / "test_d.py").mkdir()
    assert names(corpus.discover(folder)) == ["test_a.py", "test_b.py"]


def test_declared_encoding_is_used(folder):
    text = f"# coding: latin-1\n{NET}\nNAME = 'caf\xe9'\n"
    (folder / "test_b.py").write_bytes(text.encode("latin-1"))
    files = corpus.filter_files(corpus.discover(folder), "Net")
    assert [len(corpus.load_cases(path)) for path in files] == [1, 1]


@pytest.mark.parametrize("entry", ["5", "(Net, lambda: ([], {}))", "(Net, None, lambda: None)"])
def test_invalid_test_entry_is_named(folder, entry):
    (folder / "test_b.py").write_text(f"{NET}\nTESTCASES.append({entry})")
    with pytest.raises(TypeError, match=r"TESTCASES\[1\] is not"):
        corpus.load_cases(folder / "test_b.py")


def test_loading_a_file_returns_its_tests_and_writes_nothing(folder):
    before = sorted(folder.rglob("*"))
    (case,) = corpus.load_cases(folder / "test_a.py")
    args, kwargs = case.init_arguments()
    assert case.module == "Net"
    assert case.build(*args, **kwargs)(*case.forward_arguments()[0]).shape == (1, 2)
    assert sorted(folder.rglob("*")) == before
