"""Data: datasets, batches and real data, under `torch.utils.data`'s names.  In reading order: README.md."""

from minigrad.data import arithmetic, transforms
from minigrad.data.collate import default_collate
from minigrad.data.dataset import (
    ChainDataset,
    ConcatDataset,
    Dataset,
    IterableDataset,
    StackDataset,
    Subset,
    TensorDataset,
    random_split,
)
from minigrad.data.digits import digits, stratified_folds
from minigrad.data.download import DownloadError, cache_folder
from minigrad.data.fetch import WorkerInfo, get_worker_info
from minigrad.data.loader import DataLoader
from minigrad.data.mnist import mnist, read_idx
from minigrad.data.ragged import BucketBatchSampler, Forest, Padded, pad_collate, tree_collate
from minigrad.data.sampler import (
    BatchSampler,
    RandomSampler,
    Sampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from minigrad.data.split import stratified_split
from minigrad.data.text import CharTokenizer, TextWindows, prose, tiny_shakespeare, train_and_validation
from minigrad.data.transforms import shifted
from minigrad.data.trees import SyntaxTrees
from minigrad.data.workers import WorkerError, WorkerTimeout
