"""A small random actor of Go2's size."""

import torch
from torch import nn

TASK = "UniLab/Go2JoystickFlat-v0"
D, A = 49, 12


def make_actor(seed=0, gain=1.0, width=D, actions=A):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(width, 32), nn.ELU(), nn.Linear(32, actions))
        with torch.no_grad():
            net[-1].weight.mul_(gain)
    return net
