"""A deep LSTM written out with cells, after Hochreiter and Schmidhuber (1997) in the form of
Zaremba et al., "Recurrent Neural Network Regularization" (2014)."""

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.from_input = nn.Linear(inputs, 4 * hidden)
        self.from_state = nn.Linear(hidden, 4 * hidden)

    def forward(self, x: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        h, c = state
        gates = self.from_input(x) + self.from_state(h)
        i, f, g, o = gates.chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, c


class LSTM(nn.Module):
    """Sequences (T, N, inputs) to outputs (T, N, hidden) and the last state of each layer."""

    def __init__(self, inputs: int = 256, hidden: int = 256, layers: int = 10) -> None:
        super().__init__()
        self.cells = nn.ModuleList(
            Cell(inputs if i == 0 else hidden, hidden) for i in range(layers)
        )

    def forward(self, sequence: Tensor) -> tuple[Tensor, list[tuple[Tensor, Tensor]]]:
        batch = sequence.shape[1]
        states = []
        for cell in self.cells:
            zero = sequence.new_zeros(batch, cell.hidden)
            states.append((zero, zero.clone()))
        outputs = []
        for t in range(sequence.shape[0]):
            x = sequence[t]
            for i, cell in enumerate(self.cells):
                states[i] = cell(x, states[i])
                x = states[i][0]
            outputs.append(x)
        return torch.stack(outputs), states
