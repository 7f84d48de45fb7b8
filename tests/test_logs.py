"""Log topics, which MAGPY_LOGS enables one by one."""

import importlib
import importlib.util
import logging
import os
import subprocess
import sys

import pytest

from magpy_like import logs


@pytest.fixture(autouse=True)
def _logging_reset():
    # Libraries that other tests import configure logging for the whole process.
    logging.disable(logging.NOTSET)
    for name in logs.TOPICS:
        logger = logs.topic(name)
        logger.disabled, logger.propagate = False, True
    yield
    logs.configure("")


def test_only_enabled_topics_are_printed(capsys):
    logs.configure("fusion, guards")
    logs.topic("fusion").debug("two loops became one")
    logs.topic("output_code").debug("int main")
    assert capsys.readouterr().err == "[fusion] two loops became one\n"


def test_topics_can_be_disabled_again(capsys):
    logs.configure("fusion")
    logs.configure("")
    logs.topic("fusion").debug("quiet")
    assert capsys.readouterr().err == ""


def test_message_is_printed_once_with_a_root_handler(capsys):
    logging.getLogger().addHandler(handler := logging.StreamHandler())
    try:
        logs.configure("fusion")
        logs.topic("fusion").debug("once")
    finally:
        logging.getLogger().removeHandler(handler)
    assert capsys.readouterr().err.count("once") == 1


def test_program_may_enable_topics_through_logging():
    # A separate process, because other tests change the configuration of logging in theirs.
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


def test_warning_names_an_unknown_topic_and_all_topics():
    with pytest.warns(UserWarning, match="fusionn; there are guards, graph"):
        logs.configure("fusionn")


@pytest.mark.parametrize("name", logs.TOPICS)
def test_environment_variable_enables_its_topic_only(name, capsys, monkeypatch):
    monkeypatch.setenv("MAGPY_LOGS", name)
    importlib.reload(logs)
    for other in logs.TOPICS:
        logs.topic(other).debug("hello")
    assert capsys.readouterr().err == f"[{name}] hello\n"


@pytest.mark.parametrize("name", logs.TOPICS)
def test_logger_of_a_topic_is_named_after_a_module(name):
    assert importlib.util.find_spec(logs.TOPICS[name]) is not None


def test_loggers_of_topics_are_independent():
    names = [f"{logger}." for logger in logs.TOPICS.values()]
    assert not [a for a in names for b in names if a != b and a.startswith(b)]
