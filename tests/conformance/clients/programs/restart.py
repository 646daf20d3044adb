"""Megatron's pretrain_gpt.py whose rank 1 fails once, in its fourth step: restart.py ARGUMENTS"""

import itertools
import os
import runpy

from megatron.training import training

upstream, steps = training.train_step, itertools.count(1)


def train_step(*args, **kwargs):
    """A step; an error in the fourth that this process takes."""
    if next(steps) == 4 and os.environ["RANK"] == "1":
        raise RuntimeError("injected fault")
    return upstream(*args, **kwargs)


training.train_step = train_step
runpy.run_path("Megatron-LM/pretrain_gpt.py", run_name="__main__")
