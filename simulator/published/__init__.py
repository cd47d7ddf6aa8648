"""Published numbers, with their sources and a fixed split into what may be fitted and what is only predicted."""
from simulator.published.tables import Table, known, table
