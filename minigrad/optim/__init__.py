"""Optimisers and learning-rate schedules, under `torch.optim`'s names.  The files, in reading order: README.md here."""

from minigrad.optim import lr_scheduler
from minigrad.optim.adam import Adam, AdamW
from minigrad.optim.optimizer import Optimizer
from minigrad.optim.rmsprop import Adagrad, RMSprop
from minigrad.optim.sgd import SGD
