"""Chaos: real processes are killed, frozen and cut off while batches run; then the ledger is checked, line by line.

`python -m tests.chaos --n 100 --seed 7 --database postgres --workers 2`, or `make chaos`. The parts:

    errand     what is submitted, from the seed: good, bad, cancelled, expiring batches; cut uploads; deletes
    customer   submits errands and looks on: states and counts may only go forward
    fleet      the processes, and a supervisor that restarts what died
    mishap     what is done to them
    receiver    who is told by webhooks about the ends of batches
    storage    database and blobs from outside, and the private Postgres
    journal    what the engines ran, and whether each repetition is excused by a mishap
    ledger     what must be true at the end
    round      all of it, ten mishaps at a time
"""
