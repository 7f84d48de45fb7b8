"""Decoding of text, token by token, on one GPU: `python -m benchmarks.decode`.

A model of the Llama family with about 1.2 billion parameters, random weights, in bfloat16 decodes
256 tokens after a prompt of 128, with a static cache. "loop" is a plain loop whose body (model and
sampling) is compiled; "generate" is the method of `transformers` with a compiled forward.

The limit is the bandwidth of memory: a token of one sequence reads all weights, at the measured
bandwidth of a large copy.
"""

import time
from collections.abc import Callable
from typing import Any

import click
import torch
from torch import Tensor, nn

import magpy_like as magpy
from benchmarks.paired_timing import describe_machine, format_table, time_call

SETTINGS = {
    "1B": {"hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32,
           "num_key_value_heads": 8, "intermediate_size": 8192, "vocab_size": 128256,
           "tie_word_embeddings": True, "max_position_embeddings": 2048},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256,
             "tie_word_embeddings": True, "max_position_embeddings": 512},
}  # fmt: skip
COMPILERS: dict[str, Callable[[Any], Any]] = {
    "eager": lambda target: target,
    "reduce-overhead": lambda target: torch.compile(target, mode="reduce-overhead"),
    "max-autotune": lambda target: torch.compile(target, mode="max-autotune"),
    "magpy": magpy.compile,
    "magpy-reduce": lambda target: magpy.compile(target, mode="reduce-overhead"),
}


def make_model(size: str, device: str) -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model: nn.Module = LlamaForCausalLM(LlamaConfig(**SETTINGS[size])).to(torch.bfloat16)
    return model.eval()


def make_cache(model: Any, batch: int, length: int) -> Any:
    from transformers import StaticCache

    cache = StaticCache(config=model.config, max_cache_len=length)
    device, dtype = model.device, model.dtype
    config = model.config
    cache.early_initialization(
        batch, config.num_key_value_heads, config.hidden_size // config.num_attention_heads,
        dtype, device,
    )  # fmt: skip
    return cache


def sample(logits: Tensor) -> Tensor:
    """A token for each sequence, drawn without waiting for the GPU: (batch, vocabulary) -> (batch,
    1)."""
    probabilities = torch.softmax(logits.float() / 0.8, -1)
    return (probabilities / torch.empty_like(probabilities).exponential_(1)).argmax(-1, True)


def make_step(model: Any) -> Callable[..., tuple[Tensor, Tensor]]:
    def step(token: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
        """The next token and its position."""
        result = model(
            input_ids=token, past_key_values=cache, cache_position=position, use_cache=True
        )
        return sample(result.logits[:, -1]), position + 1

    return step


@torch.no_grad()
def decode(model: Any, step: Callable[..., Any], prompt: Tensor, new: int) -> Tensor:
    """The tokens of a plain loop, (batch, new): the prompt at once, eagerly, then one by one."""
    batch, length = prompt.shape
    cache = make_cache(model, batch, length + new)
    token, position = make_step(model)(prompt, torch.arange(length, device=prompt.device), cache)
    position = position[-1:]
    tokens = [token]
    for _ in range(new - 1):
        token, position = step(token, position, cache)
        tokens.append(token)
    return torch.cat(tokens, 1)


def prepare_loop(model: Any, compiler: str, prompt: Tensor, new: int) -> Callable[[], Any]:
    step = COMPILERS[compiler](make_step(model))
    if compiler in ("reduce-overhead", "max-autotune"):
        inner = step

        def step(token: Tensor, position: Tensor, cache: Any) -> tuple[Tensor, Tensor]:
            torch.compiler.cudagraph_mark_step_begin()
            token, position = inner(token, position, cache)
            return token.clone(), position.clone()

    return lambda: decode(model, step, prompt, new)


def prepare_generate(model: Any, compiler: str, prompt: Tensor, new: int) -> Callable[[], Any]:
    forward = type(model).forward.__get__(model)
    model.forward = COMPILERS[compiler](forward) if compiler != "eager" else forward
    compiled = model.forward

    @torch.no_grad()
    def generate() -> Any:
        model.forward = compiled
        return model.generate(
            prompt, max_new_tokens=new, min_new_tokens=new, do_sample=False,
            cache_implementation="static", disable_compile=True, pad_token_id=0,
        )  # fmt: skip

    return generate


def copy_bandwidth(device: str) -> float:
    """Bytes per second read and written by a copy of 1 GiB."""
    source = torch.empty(1 << 28, device=device)
    target = torch.empty_like(source)
    target.copy_(source)
    return 2 * source.nbytes / min(time_call(lambda: target.copy_(source), 5) for _ in range(5))


@click.command()
@click.option("--size", default="1B", type=click.Choice(list(SETTINGS)), show_default=True)
@click.option("--batches", default="1,8", show_default=True)
@click.option("--ways", default="loop,generate", show_default=True)
@click.option("--compilers", default="eager,reduce-overhead,magpy", show_default=True)
@click.option("--prompt", "length", default=128, show_default=True, help="Tokens of the prompt.")
@click.option("--new", default=256, show_default=True, help="Tokens to decode.")
@click.option("--rounds", default=3, show_default=True)
@click.option("--device", default="cuda", show_default=True)
def main(
    size: str, batches: str, ways: str, compilers: str, length: int, new: int, rounds: int,
    device: str,
) -> None:  # fmt: skip
    """Prints tokens per second of each compiler, and their share of the limit."""
    print(describe_machine(), "\n", flush=True)
    model = make_model(size, device)
    weights = sum(p.nbytes for p in model.parameters())
    bandwidth = copy_bandwidth(device)
    print(f"{weights / 1e9:.2f} GB of weights, copy bandwidth {bandwidth / 1e12:.2f} TB/s\n")
    rows = []
    for way in ways.split(","):
        for batch in map(int, batches.split(",")):
            prompt = torch.randint(0, 256, (batch, length), device=device)
            best: dict[str, float] = {}
            prepared = {}
            for label in compilers.split(","):
                prepare = prepare_loop if way == "loop" else prepare_generate
                begin = time.perf_counter()
                prepared[label] = prepare(model, label, prompt, new)
                for _ in range(2):
                    prepared[label]()
                print(f"{way} {batch} {label}: ready after {time.perf_counter() - begin:.1f} s",
                      flush=True)  # fmt: skip
            for _ in range(rounds):
                for label, call in prepared.items():
                    seconds = time_call(call, 1)
                    best[label] = min(best.get(label, seconds), seconds)
            limit = batch * bandwidth / weights
            cells = [
                f"{batch * new / s:.0f} ({batch * new / s / limit:.2f})" for s in best.values()
            ]
            rows.append([f"{way}, batch {batch}", f"{limit:.0f}", *cells])
            print("  ".join(rows[-1]), flush=True)
    print("\nTokens per second (share of the limit)\n")
    print(format_table(["decoding", "limit", *compilers.split(",")], rows))


if __name__ == "__main__":
    main()
