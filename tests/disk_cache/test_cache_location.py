"""Which folders are used: whatever is wrong with the chosen one, one warning and a private one."""

import errno
import multiprocessing
import os
import re
import resource
import shutil
import subprocess
import sys
import threading
import warnings

import pytest

from magpy_like.disk_cache import cache_entries, cache_location, signing_key
from magpy_like.disk_cache.cache_location import CacheError
from magpy_like.disk_cache.safe_folder import SafeFolder

FORK = multiprocessing.get_context("fork")


def messages_of(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(warning.message) for warning in caught]


def use():
    """Adds two entries and finds them."""
    for key in ("first", "second"):
        cache_entries.put(key, key.encode())
        assert cache_entries.get(key) == key.encode()


def contents(path):
    return sorted(str(below.relative_to(path)) for below in path.rglob("*"))


def as_file(cache):
    cache.write_text("words")


def below_a_file(cache):
    cache.parent.joinpath("file").touch()
    cache.symlink_to(cache.parent / "file" / "below")


def as_link_to_itself(cache):
    cache.symlink_to(cache)


def as_pipe(cache):
    os.mkfifo(cache)


def writable_by(mode, *names):
    def prepare(cache):
        folder = cache.joinpath(*names)
        folder.mkdir(parents=True, mode=0o700)
        cache.chmod(0o700)
        folder.chmod(mode)

    return prepare


def with_a_linked_folder(*names):
    def prepare(cache):
        target = cache.parent / "elsewhere"
        target.mkdir(mode=0o700)
        link = cache.joinpath(*names)
        link.parent.mkdir(parents=True)
        cache.chmod(0o700)
        link.parent.chmod(0o700)
        link.symlink_to(target)

    return prepare


def with_a_file(*names):
    def prepare(cache):
        path = cache.joinpath(*names)
        path.parent.mkdir(parents=True)
        cache.chmod(0o700)
        path.parent.chmod(0o700)
        path.touch(mode=0o600)

    return prepare


FAULTS = {
    "a file": (as_file, "cannot be written"),
    "below a file": (below_a_file, "cannot be written"),
    "a link to itself": (as_link_to_itself, "cannot be written"),
    "a pipe": (as_pipe, "cannot be written"),
    "group-writable": (writable_by(0o775), "chmod go-w .*cache"),
    "writable by all": (writable_by(0o777), "chmod go-w .*cache"),
    "a temporary folder of all": (writable_by(0o1777), "everybody can write"),
    "group-writable sub-folder": (writable_by(0o775, "magpy-v2"), "chmod go-w .*magpy-v2"),
    "group-writable folder of entries": (writable_by(0o775, "magpy-v2", "blob"), "chmod .*blob"),
    "writable workspaces": (writable_by(0o777, "magpy-v2", "tmp"), "chmod go-w .*tmp"),
    "linked sub-folder": (with_a_linked_folder("magpy-v2"), "cannot be written"),
    "linked folder of entries": (with_a_linked_folder("magpy-v2", "blob"), "cannot be written"),
    "linked workspaces": (with_a_linked_folder("magpy-v2", "tmp"), "cannot be written"),
    "sub-folder is a file": (with_a_file("magpy-v2"), "cannot be written"),
    "folder of entries is a file": (with_a_file("magpy-v2", "blob"), "cannot be written"),
    "workspaces are a file": (with_a_file("magpy-v2", "tmp"), "cannot be written"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_unusable_folder_is_replaced_by_a_private_one(cache, fault):
    prepare, match = FAULTS[fault]
    prepare(cache)
    (message,) = messages_of(use)
    assert "not kept" in message and "MAGPY_CACHE_DIR" in message
    assert re.search(match, message), message
    elsewhere = cache.parent / "elsewhere"
    assert not elsewhere.exists() or contents(elsewhere) == []


def test_folder_of_another_user_is_refused(cache, folder, monkeypatch, new_process, someone_else):
    cache_entries.put("first", b"theirs")
    new_process()
    someone_else(folder())
    (message,) = messages_of(use)
    assert "belongs to" in message and "chown" in message


@pytest.mark.parametrize("name", ["blob", "tmp"])
def test_sub_folder_of_another_user_is_refused(folder, name, new_process, someone_else):
    cache_entries.put("first", b"theirs")
    new_process()
    someone_else(folder(name))
    (message,) = messages_of(use)
    assert "belongs to" in message


def test_folder_that_becomes_writable_by_others_is_left(cache, folder):
    cache_entries.put("first", b"own")
    for path in (cache, folder(), folder("blob")):
        path.chmod(0o777)
        assert len(messages_of(lambda: cache_entries.get("first"))) <= 1
        assert cache_entries.get("first") is None
        path.chmod(0o700)


def test_deleted_folder_is_made_again(cache, folder):
    cache_entries.put("first", b"1")
    for path in (cache, folder(), folder("blob"), folder("tmp")):
        shutil.rmtree(path)
        assert messages_of(use) == []
        assert folder("blob").is_dir()


def test_closed_descriptors_are_opened_again(tmp_path):
    """A program that becomes a daemon closes all."""
    use()
    location = cache_location.current()
    for held in (location.chosen._root, location.chosen.top):
        os.close(held._descriptor)
    assert messages_of(use) == []


def test_relative_path_is_taken_from_the_first_working_directory(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MAGPY_CACHE_DIR", "here/cache")
    use()
    assert (tmp_path / "here/cache/magpy-v2").is_dir()
    monkeypatch.chdir("/")
    assert cache_entries.get("first") == b"first"


def test_relative_path_without_a_working_directory_leads_to_a_private_folder(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    monkeypatch.setenv("MAGPY_CACHE_DIR", "cache")
    (message,) = messages_of(use)
    assert "there is no folder for the cache" in message


def test_user_without_a_home_has_a_private_folder(monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_DIR", "~no-such-user/cache")
    (message,) = messages_of(use)
    assert "there is no folder for the cache" in message


def test_home_folder_as_the_cache_keeps_its_files(tmp_path, monkeypatch):
    """Only ``magpy-v2`` is touched, whatever else there is."""
    home = tmp_path / "home"
    names = ["tmp/thesis.tex", "cpp/main.cpp", "blob/aa/x.bin", f"blob/{'a' * 64}.bin", "lock/door"]
    for name in names:
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("words")
        os.utime(home / name, (0, 0))
        os.utime((home / name).parent, (0, 0))
    home.chmod(0o700)
    monkeypatch.setenv("MAGPY_CACHE_DIR", str(home))
    before = contents(home)
    use()
    assert [name for name in contents(home) if not name.startswith("magpy-v2")] == before


# --- disks ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO, errno.EFBIG]
)
def test_failed_write_moves_new_entries_to_a_private_folder(monkeypatch, number, folder):
    cache_entries.put("old", b"old")
    real = os.write

    def write(descriptor, data):
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(folder())):
            raise OSError(number, os.strerror(number))
        return real(descriptor, data)

    monkeypatch.setattr(os, "write", write)
    (message,) = messages_of(use)
    assert os.strerror(number) in message
    assert cache_entries.get("old") == b"old"
    assert os.listdir(folder("tmp")) == []


def test_full_disk_everywhere_loses_entries_quietly(monkeypatch):
    def write(descriptor, data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", write)
    assert len(messages_of(lambda: cache_entries.put("first", b"x"))) == 1
    assert cache_entries.get("first") is None
    with pytest.raises(
        CacheError, match=r"temporary folder.*No space left.*cache folder.*MAGPY_CACHE_DIR"
    ):
        cache_location.current().write(lambda cache: cache_entries.write(cache, "blob", "x", b""))


def test_file_size_limit_loses_large_entries_only():
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, old[1]))
    try:
        (message,) = messages_of(lambda: cache_entries.put("large", bytes(2000)))
        cache_entries.put("small", b"small")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert "File too large" in message
    assert cache_entries.get("large") is None
    assert cache_entries.get("small") == b"small"


def test_no_temporary_folder_loses_entries_quietly(cache, monkeypatch):
    as_file(cache)

    def none(**_):
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory")

    monkeypatch.setattr(cache_location.tempfile, "mkdtemp", none)
    assert len(messages_of(lambda: cache_entries.put("first", b"x"))) == 1
    assert cache_entries.get("first") is None


@pytest.fixture
def noexec(monkeypatch):
    """``noexec(path)``: from then on no code may be loaded from below ``path``."""

    class NoExec:
        f_flag = os.ST_NOEXEC

    def mount(path):
        def fstatvfs(descriptor, real=os.fstatvfs):
            is_below = os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(path))
            return NoExec if is_below else real(descriptor)

        monkeypatch.setattr(os, "fstatvfs", fstatvfs)

    return mount


def test_file_system_without_code_is_refused(cache, noexec):
    noexec(cache)
    (message,) = messages_of(use)
    assert "noexec" in message


def test_no_file_system_for_code_loses_entries_quietly(noexec, tmp_path, monkeypatch):
    monkeypatch.setattr(cache_location.tempfile, "tempdir", str(tmp_path))
    noexec("/")
    assert len(messages_of(lambda: cache_entries.put("first", b"x"))) == 1
    assert cache_entries.get("first") is None
    assert contents(tmp_path) == ["cache", "cache/magpy-v2"]


def test_own_warm_cache_on_a_read_only_disk_is_read(folder, new_process, monkeypatch):
    cache_entries.put("warm", b"warm")
    new_process()
    # Permissions would not keep the administrator from writing.
    monkeypatch.setattr(SafeFolder, "is_writable", lambda self: "cache" not in str(self.path))
    before = contents(folder())
    assert messages_of(lambda: cache_entries.get("warm")) == []
    assert cache_entries.get("warm") == b"warm"
    assert len(messages_of(use)) == 1
    assert contents(folder()) == before


def test_own_warm_cache_without_write_permission_is_read(folder, new_process):
    cache_entries.put("warm", b"warm")
    for name in ("", "blob", "tmp"):
        folder(name).chmod(0o500)
    new_process()
    assert messages_of(lambda: cache_entries.get("warm")) == []
    assert cache_entries.get("warm") == b"warm"
    is_bound = not os.access(folder(), os.W_OK)  # unlike the administrator
    assert len(messages_of(use)) == is_bound
    for name in ("", "blob", "tmp"):
        folder(name).chmod(0o700)


# --- the private folder --------------------------------------------------------------------------


def test_private_folder_ends_with_its_process_and_not_with_a_child(cache, outer_environment):
    as_file(cache)
    program = (
        "import os, sys, warnings; warnings.simplefilter('ignore')\n"
        "from magpy_like.disk_cache import cache_entries, cache_location\n"
        "os.environ['MAGPY_CACHE_DIR'] = sys.argv[1]\n"
        "cache_entries.put('first', b'x')\n"
        "path = cache_location._private.root\n"
        "child = os.fork()\n"
        "if not child: sys.exit(0)\n"
        "os.waitpid(child, 0)\n"
        "assert cache_entries.get('first') == b'x'\n"
        "print(path)"
    )
    command = [sys.executable, "-c", program, cache]
    done = subprocess.run(command, env=outer_environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("/") and not os.path.exists(done.stdout.strip())


def test_deleted_private_folder_is_made_again(cache):
    as_file(cache)
    messages_of(use)
    shutil.rmtree(cache_location._private.root)
    use()


def test_threads_share_one_warning_and_one_folder(cache):
    as_file(cache)

    def together():
        threads = [threading.Thread(target=use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert len(messages_of(together)) == 1


# --- read-only by choice -------------------------------------------------------------------------


@pytest.fixture
def shared(cache, folder, monkeypatch, new_process):
    """A warm cache that anyone can write to, read by choice."""
    cache_entries.put("warm", b"warm")
    cache_entries.put("other", b"other")
    for path in (cache, folder(), folder("blob")):
        path.chmod(0o777)
    for path in folder("blob").iterdir():
        path.chmod(0o666)
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    new_process()
    return folder("blob")


def entry(key):
    return cache_entries._blob(key)


def test_signed_entries_of_a_shared_folder_are_read_and_no_others_written(shared):
    before = contents(shared)
    assert messages_of(lambda: cache_entries.get("warm")) == []
    assert cache_entries.get("warm") == b"warm"
    assert messages_of(use) == []
    assert contents(shared) == before


def test_files_of_others_are_read_if_they_are_signed(shared, someone_else):
    someone_else(shared / entry("warm"))
    assert cache_entries.get("warm") == b"warm"


def plant_without_a_signature(path):
    payload = b"planted"
    found = cache_entries._digest(path.name, payload)
    size = len(payload).to_bytes(8, "little")
    path.write_bytes(payload + cache_entries._SEAL_MAGIC + size + found + signing_key.UNSIGNED)


def plant_with_another_key(path):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signing_key, "signing_key", lambda: b"k" * 32)
        path.write_bytes(b"planted" + cache_entries.seal(path.name, b"planted"))


def plant_another_entry(path):
    path.write_bytes((path.parent / entry("other")).read_bytes())


def plant_a_changed_payload(path):
    path.write_bytes(path.read_bytes().replace(b"warm", b"worm"))


def plant_a_link(path):
    path.rename(path.parent / "elsewhere")
    path.symlink_to("elsewhere")


@pytest.mark.parametrize(
    "plant",
    [plant_without_a_signature, plant_with_another_key, plant_another_entry,
     plant_a_changed_payload, plant_a_link],
)  # fmt: skip
def test_planted_entry_of_a_shared_folder_is_not_read(shared, plant):
    plant(shared / entry("warm"))
    assert cache_entries.get("warm") is None
    assert (shared / entry("warm")).exists()  # nothing there is changed


def test_shared_folder_without_a_key_is_not_read(shared, tmp_path, new_process):
    (tmp_path / "state" / "magpy_like").chmod(0o777)
    new_process()
    (message,) = messages_of(lambda: cache_entries.get("warm"))
    assert "no key" in message
    assert cache_entries.get("warm") is None


def test_own_folder_is_read_only_by_choice(folder, monkeypatch, new_process):
    cache_entries.put("warm", b"warm")
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    before = contents(folder())
    assert cache_entries.get("warm") == b"warm"
    assert messages_of(use) == []
    assert contents(folder()) == before


def test_missing_folder_that_is_only_read_is_reported_and_not_made(cache, monkeypatch):
    monkeypatch.setenv("MAGPY_CACHE_READONLY", "1")
    (message,) = messages_of(use)
    assert "cannot be read" in message
    assert not cache.exists()


@pytest.mark.parametrize("text", ["", "0", "false", "no"])
def test_read_only_can_be_off(folder, monkeypatch, text):
    monkeypatch.setenv("MAGPY_CACHE_READONLY", text)
    use()
    assert len(contents(folder("blob"))) == 2


# --- the key -------------------------------------------------------------------------------------


def test_key_is_made_once_and_private(tmp_path, new_process):
    first = signing_key.signing_key()
    new_process()
    assert signing_key.signing_key() == first
    (path,) = (tmp_path / "state" / "magpy_like").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert len(first) == 32


def readable_by_others(path):
    path.chmod(0o644)


def too_short(path):
    path.write_bytes(b"short")


def a_link(path):
    path.rename(path.with_name("moved"))
    path.symlink_to("moved")


def a_key_pipe(path):
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize("spoil", [readable_by_others, too_short, a_link, a_key_pipe])
def test_unsafe_key_is_not_used(tmp_path, new_process, spoil):
    signing_key.signing_key()
    new_process()
    spoil(tmp_path / "state" / "magpy_like" / "cache.key")
    assert signing_key.signing_key() is None
    use()  # entries are not signed, and serve in a private folder


def test_concurrent_processes_agree_on_the_key(tmp_path):
    keys = FORK.Queue()
    children = [FORK.Process(target=lambda: keys.put(signing_key.signing_key())) for _ in range(8)]
    for child in children:
        child.start()
    assert len({keys.get(timeout=60) for _ in children}) == 1
    for child in children:
        child.join()
    assert os.listdir(tmp_path / "state" / "magpy_like") == ["cache.key"]
