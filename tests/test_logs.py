"""MAGPY_LOGS switches topics on, one by one."""

import importlib
import importlib.util
import logging
import os
import subprocess
import sys

import pytest

from magpy_like import logs


@pytest.fixture(autouse=True)
def _silent_again():
    # Libraries that other tests import configure logging for the whole process.
    logging.disable(logging.NOTSET)
    for name in logs.TOPICS:
        logger = logs.topic(name)
        logger.disabled, logger.propagate = False, True
    yield
    logs.configure("")


def test_only_the_topics_asked_for_are_printed(capsys):
    logs.configure("fusion, guards")
    logs.topic("fusion").debug("two loops became one")
    logs.topic("output_code").debug("int main")
    assert capsys.readouterr().err == "[fusion] two loops became one\n"


def test_a_topic_can_be_switched_off_again(capsys):
    logs.configure("fusion")
    logs.configure("")
    logs.topic("fusion").debug("quiet")
    assert capsys.readouterr().err == ""


def test_a_program_with_its_own_root_logger_sees_a_message_once(capsys):
    logging.getLogger().addHandler(handler := logging.StreamHandler())
    try:
        logs.configure("fusion")
        logs.topic("fusion").debug("once")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err.count("once") == 1


def test_a_program_may_listen_by_itself():
    # In a process of its own: other tests change how logging works for the whole of theirs.
    code = (
        f"import logging, runpy; topic = runpy.run_path({logs.__file__!r})['topic']\n"
        "logging.basicConfig()\n"
        "logging.getLogger('magpy_like').setLevel(logging.DEBUG)\n"
        "topic('records').debug('hit')"
    )
    environment = {name: value for name, value in os.environ.items() if name != "MAGPY_LOGS"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    assert "hit" in done.stderr


def test_an_unknown_topic_is_named_with_those_there_are():
    with pytest.warns(UserWarning, match="fusionn; there are guards, graph"):
        logs.configure("fusionn")


@pytest.mark.parametrize("name", logs.TOPICS)
def test_the_environment_is_read(name, capsys, monkeypatch):
    monkeypatch.setenv("MAGPY_LOGS", name)
    importlib.reload(logs)
    for other in logs.TOPICS:
        logs.topic(other).debug("hello")
    assert capsys.readouterr().err == f"[{name}] hello\n"


@pytest.mark.parametrize("name", logs.TOPICS)
def test_a_topic_is_named_after_a_module_that_exists(name):
    assert importlib.util.find_spec(logs.TOPICS[name]) is not None


def test_no_topic_inherits_from_another():
    names = [f"{logger}." for logger in logs.TOPICS.values()]
    assert not [a for a in names for b in names if a != b and a.startswith(b)]
