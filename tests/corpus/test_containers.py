"""Programs that hold, build and return Python's containers."""

import collections
import dataclasses
from collections import OrderedDict, UserDict, defaultdict, deque, namedtuple

import torch
from torch import nn

Boxes = namedtuple("Boxes", ["corners", "scores"])


@dataclasses.dataclass
class Prediction:
    logits: torch.Tensor
    hidden: list
    name: str = "prediction"


class Features(UserDict):
    """A dictionary of feature maps that also has attributes."""

    def last(self):
        return list(self.data.values())[-1]


class ReturnsDeque(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        history = deque(maxlen=self.length)
        for _ in range(self.length + 1):
            x = self.linear(x)
            history.append(x)
        return history


class ReturnsCounter(nn.Module):
    def forward(self, x):
        counts = collections.Counter()
        for name in ("conv", "norm", "conv"):
            counts[name] += 1
        return x * counts["conv"], counts


class ReturnsUserDict(nn.Module):
    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 2)])

    def forward(self, x):
        features = Features()
        for index, step in enumerate(self.steps):
            x = step(x)
            features[f"step{index}"] = x
        return features, features.last()


class ReturnsOrderedDict(nn.Module):
    def forward(self, x, y):
        out = OrderedDict()
        out["sum"] = x + y
        out["product"] = x * y
        out.move_to_end("sum")
        return out


class ReturnsNestedDictionaries(nn.Module):
    def forward(self, x):
        losses = {"train": {"mse": (x**2).mean(), "l1": x.abs().mean()}, "lr": 0.1}
        losses["train"].update(total=sum(losses["train"].values()))
        return losses


class GroupsWithDefaultDict(nn.Module):
    def forward(self, x):
        groups = defaultdict(list)
        for index, row in enumerate(x.unbind(0)):
            groups[index % 2].append(row)
        return torch.cat([torch.stack(rows).mean(0) for rows in groups.values()])


class ReturnsNamedTuple(nn.Module):
    def forward(self, boxes, scores):
        found = Boxes(corners=boxes.clamp(0, 1), scores=scores.sigmoid())
        return found._replace(scores=found.scores * 2)


class ReturnsDataclass(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)

    def forward(self, x):
        hidden = [x]
        out = Prediction(self.linear(x), hidden)
        out.hidden.append(out.logits.relu())
        return out


class TakesDictionary(nn.Module):
    def forward(self, batch):
        scale = batch.get("scale", 2.0)
        return {name: value * scale for name, value in batch.items() if name != "scale"}


class ListOperations(nn.Module):
    def forward(self, x):
        parts = list(x.split(1, dim=1))
        parts.reverse()
        first, *middle, last = parts
        parts = [last, *middle[::-1], first] + [first]
        parts.insert(1, parts.pop())
        del parts[-1]
        return torch.cat(parts, 1), len(parts)


class SetsAndMembership(nn.Module):
    def __init__(self, taps):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(4)])
        self.taps = set(taps)

    def forward(self, x):
        outputs = []
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if index in self.taps:
                outputs.append(x)
        return outputs


class SortsByKey(nn.Module):
    def __init__(self):
        super().__init__()
        self.weights = {"b": 2.0, "a": 1.0, "c": 3.0}

    def forward(self, x):
        for _name, weight in sorted(self.weights.items(), key=lambda item: -item[1]):
            x = x * weight + 1
        return x


class TupleKeys(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {(0, "x"): 1.0, (1, "y"): 2.0}

    def forward(self, x):
        return x * self.table[1, "y"] + self.table[x.dim() - 2, "x"]


class SharedListInResult(nn.Module):
    """Returns one list twice, and the argument itself."""

    def forward(self, x):
        both = [x + 1]
        return both, both, x


TESTCASES = [
    # (module class, init arguments, forward arguments, TorchScript is known to support it)
    (ReturnsDeque, lambda: ([2], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ReturnsCounter, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (ReturnsUserDict, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        ReturnsOrderedDict,
        lambda: ([], {}),
        lambda: ([torch.rand(2, 4), torch.rand(2, 4)], {}),
        False,
    ),
    (ReturnsNestedDictionaries, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (GroupsWithDefaultDict, lambda: ([], {}), lambda: ([torch.rand(4, 3)], {}), False),
    (
        ReturnsNamedTuple,
        lambda: ([], {}),
        lambda: ([torch.rand(3, 4) * 2, torch.rand(3)], {}),
        False,
    ),
    (ReturnsDataclass, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (
        TakesDictionary,
        lambda: ([], {}),
        lambda: ([{"image": torch.rand(2, 3), "mask": torch.rand(2, 3), "scale": 3.0}], {}),
        False,
    ),
    (ListOperations, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (SetsAndMembership, lambda: ([[1, 3]], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (SortsByKey, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (TupleKeys, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
    (SharedListInResult, lambda: ([], {}), lambda: ([torch.rand(2, 4)], {}), False),
]
