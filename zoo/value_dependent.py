"""Programs whose control flow depends on tensors' values, or that read and write streams."""

from collections.abc import Callable
from typing import Any, TextIO

import torch
import transformers
from torch import Tensor, nn
from torch.nn import functional as F


class Detector(nn.Module):
    """Images (1, 3, H, W) to boxes (K, 4) as corners, scores (K,) and classes (K,).

    The boxes of all cells of a grid are filtered by a boolean mask, then thinned out by
    non-maximum suppression, written in Python: the best box stays, those that overlap it go.
    """

    def __init__(self, width: int = 8, classes: int = 3, threshold: float = 0.37) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.head = nn.Conv2d(width, 4 + classes, 1)
        self.threshold = threshold

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        out = self.head(self.backbone(images))[0].flatten(1).t()
        centres, sizes, logits = out[:, :2], out[:, 2:4].exp(), out[:, 4:]
        boxes = torch.cat((centres - sizes / 2, centres + sizes / 2), 1)
        scores, classes = logits.softmax(1).max(1)
        keep = scores > self.threshold
        boxes, scores, classes = boxes[keep], scores[keep], classes[keep]
        chosen = suppress(boxes, scores, 0.5)
        return boxes[chosen], scores[chosen], classes[chosen]


def overlap(box: Tensor, others: Tensor) -> Tensor:
    """Intersection over union of a box (4,) with others (K, 4)."""
    low = torch.maximum(box[:2], others[:, :2])
    high = torch.minimum(box[2:], others[:, 2:])
    inner = (high - low).clamp(min=0).prod(1)
    area = (box[2:] - box[:2]).prod()
    areas = (others[:, 2:] - others[:, :2]).prod(1)
    return inner / (area + areas - inner)


def suppress(boxes: Tensor, scores: Tensor, limit: float) -> Tensor:
    """Indices of the boxes that stay, best first."""
    order = scores.argsort(descending=True)
    chosen = []
    while order.numel() > 0:
        best, rest = order[0], order[1:]
        chosen.append(best)
        order = rest[overlap(boxes[best], boxes[rest]) <= limit]
    return torch.stack(chosen) if chosen else order


class EarlyExit(nn.Module):
    """Features (N, width) to logits and the number of stages that it took to be sure of them."""

    def __init__(self, width: int = 16, stages: int = 4, classes: int = 5) -> None:
        super().__init__()
        self.stages = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(stages)
        )
        self.exits = nn.ModuleList(nn.Linear(width, classes) for _ in range(stages))
        self.confidence = 0.45

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        for depth, (stage, leave) in enumerate(zip(self.stages, self.exits)):
            x = stage(x)
            logits = leave(x)
            if logits.softmax(1).max(1).values.min() > self.confidence:
                return logits, depth
        return logits, depth


class TrainingStep:
    """One step of training: loss, gradients clipped by their norm, update, a line in a log file."""

    def __init__(self, model: nn.Module, log: TextIO, rate: float = 0.1, most: float = 0.5) -> None:
        self.model, self.log, self.rate, self.most = model, log, rate, most
        self.steps = 0

    def __call__(self, x: Tensor, target: Tensor) -> float:
        loss = F.mse_loss(self.model(x), target)
        parameters = list(self.model.parameters())
        gradients = torch.autograd.grad(loss, parameters)
        norm = torch.stack([g.norm() for g in gradients]).norm().item()
        scale = self.most / norm if norm > self.most else 1.0
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients):
                parameter.sub_(gradient, alpha=self.rate * scale)
        self.steps += 1
        self.log.write(f"{self.steps} {loss.item():.4f} {norm:.4f}\n")
        return loss.item()


def generation(kind: str, beams: int) -> Callable[[Tensor], Any]:
    """Token ids (N, length) to token ids: the decoding loop of `transformers`, with its cache."""
    sizes: dict[str, Any] = {"vocab_size": 50, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "GPT-2":
        config = transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, n_positions=64, **sizes)
        model: Any = transformers.GPT2LMHeadModel(config)
    else:
        config = transformers.T5Config(
            d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2,
            decoder_start_token_id=0, pad_token_id=0, vocab_size=50, eos_token_id=1,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config)
    model.eval()

    def generate(prompt: Tensor) -> Any:
        return model.generate(
            prompt, max_new_tokens=6, num_beams=beams, do_sample=False, use_cache=True,
            pad_token_id=0, attention_mask=torch.ones_like(prompt),
        )  # fmt: skip

    return generate
