"""A pool: functions run in the main thread, one after the other, so that a debugger can stop in them.

stellaris-jax train plugins=[pool.py] executor=live live.pool=inline
"""

import time

import stellaris_jax as sj
from stellaris_jax.live.functions import Functions
from stellaris_jax.live.pool import Done


@sj.register.pool("inline")
class Inline(sj.Pool):
    """Functions called by `wait`, in the order in which they were submitted."""

    def __init__(self, config, actors):
        self.functions, self.submitted = Functions(config), []

    def submit(self, call, *arguments):
        self.submitted.append((call, arguments))

    def wait(self):
        if not self.submitted:
            return []
        call, arguments = self.submitted.pop(0)
        begin = time.monotonic()
        value, seconds = self.functions.invoke(call.kind, *arguments)
        return [Done(call, value, seconds, elapsed=time.monotonic() - begin)]

    def close(self):
        self.functions.close()
