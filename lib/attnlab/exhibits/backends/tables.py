"""Exhibits of other pages, made from the companion runs, and which runs those are."""

from attnlab.exhibits.baseline import sweeps
from attnlab.exhibits.catalogue import exhibit, target
from attnlab.exhibits.environment import machine
from attnlab.exhibits.verdicts import target as at_target

exhibit("backends.run", of="choices")(machine.machine)
exhibit("backends.lacking", of="choices")(machine.lacking)
exhibit("backends.cases", of="choices")(machine.cases)
exhibit("backends.attend.run", of="attended")(machine.machine)
exhibit("backends.peers.run", of="peers")(machine.machine)
exhibit("backends.verdicts", of="choices", shape=target)(at_target.verdicts)
exhibit("backends.grid", of="choices", name="grid seq_len")(sweeps.backends)
exhibit("backends.grouped.table", of="choices", name="grouped kv_heads")(sweeps.backends)
exhibit("backends.decode.table", of="choices", name="decode kv_len")(sweeps.backends)
exhibit("backends.decode.alone", of="choices", name="decode alone kv_len")(sweeps.backends)
