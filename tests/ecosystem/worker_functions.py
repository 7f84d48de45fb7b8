"""Functions and data sets that workers of a ``DataLoader`` import."""

import torch
from torch.utils.data import Dataset

import magpy_like as magpy


def normalised(x):
    return (x - x.mean()) / (x.std() + 1e-3)


plain_normalised = normalised
normalised = magpy.compile(normalised)


@magpy.compile
def stacked(batch):
    """A collate function."""
    images = torch.stack([image for image, _ in batch])
    labels = torch.tensor([label for _, label in batch])
    return images * 2 + 1, labels


class Crop(torch.nn.Module):
    """A transform that is a module."""

    def forward(self, x):
        return x[:, 1:-1, 1:-1].flip(-1)


class Scale:
    """A transform that is a callable object."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return x * self.factor


class Images(Dataset):
    """Random images, transformed, with the hits of the transform."""

    def __init__(self, transform):
        self.transform = transform

    def __len__(self):
        return 8

    def __getitem__(self, index):
        x = torch.rand(3, 8, 8, generator=torch.Generator().manual_seed(index))
        return self.transform(x), hits(self.transform)


def hits(transform):
    """-1 for a transform that is not compiled."""
    try:
        return magpy.cache_info(transform).hits
    except magpy.MagpyError:
        return -1


def stacked_with_hits(batch):
    return *stacked(batch), magpy.cache_info(stacked).hits
