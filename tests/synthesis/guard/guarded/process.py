"""Programs that rely on the state of the process, and on speculated values."""

from __future__ import annotations

import abc
import functools
import logging

import torch
from torch import nn

from magpy_like.synthesis.guard.conditions import Kind
from tests.synthesis.guard.guarded.registry import (
    Calls,
    ones,
    relies_on,
    varied_argument,
    varied_state,
)


@relies_on(Kind.TORCH_MODES)
def grad_mode() -> Calls:
    return varied_state(
        lambda x: x if torch.is_grad_enabled() else -x, lambda i: torch.set_grad_enabled(i == 0)
    )


@relies_on(Kind.TORCH_MODES)
def deterministic_algorithms() -> Calls:
    return varied_state(
        lambda x: x if torch.are_deterministic_algorithms_enabled() else -x,
        lambda i: torch.use_deterministic_algorithms(i == 1),
        *(0, 0, 1, 0),
    )


@relies_on(Kind.TORCH_MODES, backend="magpy")
def autocast_dtype() -> Calls:
    def program(x):
        torch.set_autocast_enabled("cpu", True)
        try:
            return (x[None] @ x[:, None]).sum()
        finally:
            torch.set_autocast_enabled("cpu", False)

    return varied_state(
        program, lambda i: torch.set_autocast_dtype("cpu", (torch.bfloat16, torch.float16)[i])
    )


@relies_on(Kind.DEFAULT_DEVICE, after_split=False)
def default_device() -> Calls:
    return varied_state(
        lambda x: torch.ones(2), lambda i: torch.set_default_device(("cpu", "meta")[i])
    )


@relies_on(Kind.STATE_READ)
def matmul_precision() -> Calls:
    return varied_state(
        lambda x: x if torch.get_float32_matmul_precision() == "highest" else -x,
        lambda i: torch.set_float32_matmul_precision(("highest", "high")[i]),
    )


@relies_on(Kind.STATE_READ_OF_FETCHED)
def level_of_a_logger() -> Calls:
    loggers = [logging.Logger("a", level) for level in (logging.INFO, logging.DEBUG)]

    def program(x, logger):
        return x * 2 if logger.isEnabledFor(logging.DEBUG) else x

    return varied_argument(program, lambda: loggers[0], lambda: loggers[1])


@relies_on(Kind.ABSTRACT_CLASS)
def registered_subclass() -> Calls:
    class Abstract(abc.ABC):
        pass

    class Concrete:
        pass

    def change(i):
        if i:
            Abstract.register(Concrete)

    return varied_state(lambda x: x * 2 if issubclass(Concrete, Abstract) else x, change)


@relies_on(Kind.CACHED_CALL)
def cached_call() -> Calls:
    state = [1]

    @functools.lru_cache
    def cached(n: int) -> int:
        return state[0] + n

    def change(i):
        if i:
            state[0] = 5
            cached.cache_clear()

    return varied_state(lambda x: x * cached(1), change)


@relies_on(Kind.ALIASING_OF_ENTRIES)
def entry_of_a_varying_number() -> Calls:
    @functools.lru_cache
    def cached(n: int) -> list[int]:
        return [n]

    def program(x, n):
        return x * cached(n)[0] + cached(1)[0]

    return program, [lambda n=n: (ones(), n) for n in (3, 1, 1, 5)]


# Speculated values -------------------------------------------------------------------------------


@relies_on(Kind.SPECULATED_VALUE)
def speculated_value() -> Calls:
    def program(x, log):
        if x.sum() > 0:
            log.append(1)
            return x * 2
        log.clear()
        return x

    return program, [lambda i=i: (ones() * i, [0]) for i in (1, 1, 1, -1)]


@relies_on(Kind.EARLY_SPECULATED_VALUE)
def speculated_value_before_a_write() -> Calls:
    parameter = nn.Parameter(torch.ones(2))

    def program(x):
        with torch.no_grad():
            if x.sum().item() > 0:
                parameter.add_(x)
            else:
                parameter.sub_(2)
        return x

    return program, [lambda i=i: (ones() * i,) for i in (1, 1, 1, -1)]
