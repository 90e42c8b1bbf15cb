"""What tests send to workers: a module of its own, which a new process loads in no time.

A function travels by its name. From a file of tests it would bring pytest, hypothesis and the whole
library to every worker that is started.
"""

from __future__ import annotations

import os
import pickle
import signal
import time

from tightz.runtime import local_workers


def square(x):
    return x * x


def fail_at_five(x):
    if x == 5:
        raise ZeroDivisionError("a bug at 5")
    return x


def die_once(marker, x):
    """Kills its process the first time it meets task 7."""
    if x == 7:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return x
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def die_answering(marker, x):
    """Kills its process the first time it meets task 2, with half of the answer on its way."""
    if x == 2 and not os.path.exists(marker):

        def half(pipe, message):
            whole = pickle.dumps(message)
            pipe.write(whole[: len(whole) // 2])
            pipe.flush()
            os.close(os.open(marker, os.O_CREAT))
            os.kill(os.getpid(), signal.SIGKILL)

        local_workers._put = half
    return x


def die_at_six(x):
    if x == 6:
        os.kill(os.getpid(), signal.SIGKILL)
    return x


def fork_and_die():
    """Leaves a child that lives on, and dies."""
    if os.fork() == 0:
        time.sleep(600)
        os._exit(0)
    os.kill(os.getpid(), signal.SIGKILL)
