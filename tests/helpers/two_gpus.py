"""Models, rows and waits on two GPUs that are not there."""

import torch
from torch.utils._python_dispatch import _disable_current_modes

import tiny
from fake_device import FakeDevice, move
from thinkalike.data.rows import TokenRows

GPU, OTHER, ROWS = "cuda:0", "cuda:1", 96


def made(seed, place):
    with _disable_current_modes():
        model = tiny.frozen(seed)
    move(model.module, place)
    model.device = torch.device(place)
    return model


def rows(seed):
    tokens = torch.randint(40, (12, 32), generator=torch.Generator().manual_seed(seed))
    return TokenRows(tokens, torch.arange(12)[:, None].repeat(1, 32))


def waits(job, *sizes, **chosen):
    with FakeDevice() as device:
        job(*sizes, **chosen)
    return device.waits
