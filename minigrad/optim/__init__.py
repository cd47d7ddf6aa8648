"""Optimisers and learning-rate schedules, under `torch.optim`'s names.  The files, in reading order: README.md here."""

from minigrad.optim import lr_scheduler, swa_utils
from minigrad.optim.accumulate import Accumulate
from minigrad.optim.adam import Adam, AdamW, SparseAdam
from minigrad.optim.adam_variants import Adamax, NAdam, RAdam
from minigrad.optim.large_batch import LAMB, LARS
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.rmsprop import Adadelta, Adagrad, RMSprop
from minigrad.optim.sgd import ASGD, SGD
from minigrad.optim.sign import Lion, Rprop
