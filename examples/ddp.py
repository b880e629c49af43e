"""Train a small model with DistributedDataParallel on CPUs; the same under torchrun and under milkweed.

torchrun --standalone --nproc-per-node 4 examples/ddp.py
milkweed torchrun --nnodes 2 --nproc-per-node 2 examples/ddp.py
"""

from __future__ import annotations

import argparse
import gc
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

SAMPLES = 512
BATCH = 16


def make_data() -> tuple[torch.Tensor, torch.Tensor]:
    """Points on a noisy wave, the same on every rank."""
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(SAMPLES, 1, generator=generator) * 6 - 3
    return x, torch.sin(x) + 0.05 * torch.randn(SAMPLES, 1, generator=generator)


def train(epochs: int) -> float:
    """Train; every rank takes its share of each epoch's samples."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = make_data()
    loss = torch.zeros(())
    for epoch in range(epochs):
        order = torch.randperm(SAMPLES, generator=torch.Generator().manual_seed(epoch))[rank::size]
        for batch in order.split(BATCH):
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(model(x[batch]), y[batch])
            loss.backward()
            optimizer.step()
        mean = loss.detach().clone()
        dist.all_reduce(mean)
        if rank == 0:
            print(f"epoch {epoch + 1}: loss {mean.item() / size:.6f}", flush=True)
    return loss.item()


@record
def main() -> None:
    """Join the other ranks, train, and leave."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    try:
        if dist.get_rank() == 0:
            print(f"{dist.get_world_size()} ranks, torch {torch.__version__}", flush=True)
        train(args.epochs)
    finally:
        gc.collect()  # a model that is still there keeps the group's threads, and these may abort at the end
        dist.destroy_process_group()
    print(f"rank {os.environ['RANK']} is done", flush=True)


if __name__ == "__main__":
    main()
