"""The Fréchet distance of a model's samples to held-out pictures (Heusel et al. 2017, arXiv:1706.08500), in features of
small classifiers that are trained here, instead of Inception's. The spread over several classifiers shows how much the
distance depends on the classifier.
"""

import torch
import torch.nn.functional as F
from torch import nn

import images

CLASSIFIERS, SAMPLES, STEPS = 3, 500, 20


def network():
    """A classifier of pictures [n,1,28,28]. The features are the inputs of its last layer."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 49, 32), nn.ReLU(), nn.Linear(32, images.CLASSES),
    )  # fmt: skip


def scaled(pictures):
    return (pictures.float() / 127.5 - 1)[:, None]


def classifier(pictures, labels, seed):
    """Trains a classifier for one epoch."""
    torch.manual_seed(seed)
    made = network()
    optimizer = torch.optim.AdamW(made.parameters(), lr=2e-3)
    for some in torch.randperm(len(pictures)).split(128):
        loss = F.cross_entropy(made(scaled(pictures[some])), labels[some])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return made.eval()


@torch.no_grad()
def moments(net, x):
    """Mean and covariance of the features of pictures [n,1,28,28]."""
    features = torch.cat([net[:-1](some) for some in x.split(1000)]).double()
    return features.mean(0), features.t().cov()


def root(a):
    """The square root of a symmetric, positive semidefinite matrix."""
    values, vectors = torch.linalg.eigh(a)
    return vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.t()


def distance(one, other):
    """|m - m'|^2 + tr(C + C' - 2 (C C')^(1/2)) of two means and covariances."""
    half = root(one[1])
    cross = root(half @ other[1] @ half)
    return ((one[0] - other[0]).square().sum() + (one[1] + other[1] - 2 * cross).trace()).item()


def judges(data):
    """For each classifier: (network, moments of the held-out pictures, accuracy on them)."""
    (held, labels), made = data["t10k"], []
    for seed in range(CLASSIFIERS):
        net = classifier(*data["train"], seed)
        with torch.no_grad():
            right = (net(scaled(held)).argmax(1) == labels).float().mean().item()
        made.append((net, moments(net, scaled(held)), right))
    return made


def distances(model, judged, seed):
    """The distance of samples to the held-out pictures by each classifier. Samples are drawn without guidance, the same
    number of each class."""
    torch.manual_seed(seed)
    classes = torch.arange(SAMPLES) % images.CLASSES
    drawn = torch.cat([images.sample(model, y, 1.0, STEPS) for y in classes.split(250)])
    return [round(distance(moments(net, drawn.clamp(-1, 1)[:, None]), real), 3) for net, real, _ in judged]
