"""Operations with known properties, for correct and wrong annotations in tests."""

import os

import torch

_calls = 0
_setting = [0]


def counts(value):
    global _calls
    _calls += 1
    return _calls


def appends(items, value):
    items.append(value)


def looks_at(items):
    return repr(items)


def first(items):
    return items[0]


def copy_of_first(items):
    return list(items[0])


def length(items):
    return len(items)


def keys(mapping):
    return list(mapping)


def identity(value):
    return id(value)


def lookup(mapping, key, default):
    return mapping.get(key, default)


def chooses(items):
    return max(items)


def store(holder, name, value):
    setattr(holder, name, value)


def working_directory(value):
    return os.getcwd()


def draws(value):
    return torch.rand(3).tolist()


def doubles(tensor):
    return tensor * 2


def doubles_in_place(tensor):
    return tensor.mul_(2)


def largest(tensor):
    return tensor.max().item()


def positive(tensor):
    return tensor[tensor > 0.5]


def ends_the_process(value):
    os._exit(3)


def never_returns(value):
    while True:
        pass
