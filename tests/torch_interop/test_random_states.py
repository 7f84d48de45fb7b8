"""States of torch's default random generators."""

import subprocess
import sys

THREADS = """
import gc, threading, time
from magpy_like.torch_interop.random_states import generator_states

class LetsAnotherThreadRun:
    def __init__(self):
        self.me = self  # garbage of a collection

    def __del__(self):
        LetsAnotherThreadRun()  # so that each collection has one
        time.sleep(0.0001)

def work():
    LetsAnotherThreadRun()
    for _ in range(300):
        generator_states()

gc.set_threshold(1)
threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
"""


def test_threads_read_states_while_garbage_is_collected():
    subprocess.run([sys.executable, "-c", THREADS], check=True, timeout=100)
