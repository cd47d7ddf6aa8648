"""Strategies: ways to train one model on many devices, each equal to one device.  The files, in reading order:
README.md in this folder."""
from simulator.strategies.batchnorm import SyncBatchNorm
from simulator.strategies.convergence import Comparison
from simulator.strategies.data_parallel import DDP, DistributedDataParallel
from simulator.strategies.experts import ExpertParallelMoE
from simulator.strategies.heads import ParallelMultiheadAttention, ParallelSelfAttention
from simulator.strategies.history import History, Recorder
from simulator.strategies.local_sgd import DiLoCo, LocalSGD
from simulator.strategies.norms import clip_grad_norm_, exact_mean, grad_norm, token_loss
from simulator.strategies.parallelize import parallelize
from simulator.strategies.parameter_server import Worker, collect, parameter_server, take_role
from simulator.strategies.sampler import DistributedSampler
from simulator.strategies.sequence import SequenceRegion
from simulator.strategies.servers import Server
from simulator.strategies.shards import Shard, gather_state, load_full_state, shards_of
from simulator.strategies.shares import BatchShares, shares_of
from simulator.strategies.tensor_parallel import ColumnParallelLinear, RowParallelLinear
from simulator.strategies.vocabulary import VocabParallelEmbedding, vocab_parallel_cross_entropy
