"""Collectives as rounds of moves, each written once: carried out on arrays, proved, priced, drawn.  The files, in
reading order: README.md in this folder."""
from simulator.collectives.algorithms import ALGORITHMS, DEFAULT, algorithms, make_plan
from simulator.collectives.arrays import collective, pieces, run
from simulator.collectives.closed_forms import FORMS, Form, cheapest, closed_form
from simulator.collectives.comparison import Comparison, compare
from simulator.collectives.plan import KINDS, Message, Move, Plan, PlanError, cut
from simulator.collectives.prices import MACHINES, bytes_matrix, price
from simulator.collectives.proof import additions, check, same_everywhere
from simulator.collectives.replays import Replay, put_messages, replay
