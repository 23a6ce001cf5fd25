"""Your own PyTorch loop with parts of noiseproof: a robust loss, a momentum model, label correction."""

import copy

import torch
from torch import nn

from noiseproof import get_loss
from noiseproof.data import corrupt, get_dataset
from noiseproof.strategies import corrected_targets, update_average

# 1437 digits, 40 % of them with a wrong label, and 360 correct ones to test on. With your own data, start below.
digits = get_dataset("digits")
noisy = corrupt(digits, "symmetric:rate=0.4", generator=0)
x, given = noisy.x.flatten(1) / 255, noisy.given
test_x, test_y = digits.test.x.flatten(1) / 255, digits.test.y
EPOCHS, BATCH = 60, 128


def make_model() -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))


def accuracy(model: nn.Module) -> float:
    with torch.no_grad():
        return (model(test_x).argmax(1) == test_y).double().mean().item()


# The usual loop. Only the loss differs from training without regard to noise.
def train(loss: nn.Module) -> nn.Module:
    model, order = make_model(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            optimizer.zero_grad()
            loss(model(x[rows]), given[rows]).backward()
            optimizer.step()
    return model


print(f"cross entropy: {accuracy(train(nn.CrossEntropyLoss())):.3f}")
print(f"robust loss: {accuracy(train(get_loss('gce:q=0.7'))):.3f}")


# The same loop with noise on the labels, a momentum model and label correction: SLN-MO-LC of the SLN paper. Losses take
# targets (B, K) of real numbers as well as classes (B,).
def train_with_all() -> nn.Module:
    model, order = make_model(), torch.Generator().manual_seed(0)
    average = copy.deepcopy(model)  # the momentum model, which predicts
    loss = get_loss("ce")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    targets = nn.functional.one_hot(given, 10).float()
    for epoch in range(EPOCHS):
        correcting = epoch >= 5 * EPOCHS // 6
        if correcting:
            with torch.no_grad():
                targets = corrected_targets(average(x).log_softmax(1), given, current=targets)
        for rows in torch.randperm(len(x), generator=order).split(BATCH):
            target = targets[rows]
            if not correcting:
                target = target + 0.5 * torch.randn(target.shape, generator=order)
            optimizer.zero_grad()
            loss(model(x[rows]), target).backward()
            optimizer.step()
            update_average(average, model, alpha=0.95)
    return average


print(f"noise, momentum model, label correction: {accuracy(train_with_all()):.3f}")
