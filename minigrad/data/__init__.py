"""Data: datasets, batches and real digits, under `torch.utils.data`'s names.  In reading order: README.md."""

from minigrad.data.collate import default_collate
from minigrad.data.dataset import ConcatDataset, Dataset, Subset, TensorDataset, random_split
from minigrad.data.digits import digits, stratified_folds
from minigrad.data.loader import DataLoader
from minigrad.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from minigrad.data.transforms import shifted
