"""Metrics of models, measured in evaluation mode; the module stays unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fededge import models, ops
from fededge._internal.lazy_torch import Tensor, nn, torch

__all__ = [
    "accuracy",
    "class_accuracies",
    "device_of",
    "evaluating",
    "fairness",
    "kl_from_template",
    "label_shares",
    "learning_performance",
    "mean_and_interval",
    "predictions",
    "probability_matrix",
    "risk",
    "wrong_spread",
]


@contextmanager
def evaluating(module: nn.Module) -> Iterator[None]:
    """Switch to evaluation mode without gradients; restore every submodule's mode afterwards."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in modes:
            part.training = training


def predictions(module: nn.Module, preprocess: nn.Module, x: Tensor, batch: int = 256) -> Tensor:
    """Return the label that the module predicts for each input."""
    with evaluating(module):
        quick, device = models.for_inference(module), device_of(module)
        inputs = (preprocess(part.to(device)) for part in x.split(batch))
        return torch.cat([quick(models.channels_last(part)).argmax(1) for part in inputs])


def device_of(module: nn.Module) -> torch.device:
    """Return the device of a module's parameters."""
    return next((p.device for p in module.parameters()), torch.device("cpu"))


def accuracy(module: nn.Module, preprocess: nn.Module, x: Tensor, y: Tensor) -> float:
    """Return the share of inputs whose label is predicted; NaN without inputs."""
    if not len(y):
        return float("nan")
    return float((predictions(module, preprocess, x).to(y.device) == y).double().mean())


def class_accuracies(
    module: nn.Module, preprocess: nn.Module, x: Tensor, y: Tensor, classes: int
) -> Tensor:
    """Return the accuracy of each class, float64 [classes]; NaN for a class without inputs."""
    y = y.cpu()
    right = (predictions(module, preprocess, x).cpu() == y).double()
    hits = torch.zeros(classes, dtype=torch.float64).index_add_(0, y, right)
    return hits / torch.bincount(y, minlength=classes)


def label_shares(counts: Tensor) -> Tensor:
    """Return each device's label distribution, from its counts [devices, classes]."""
    return counts.double() / counts.sum(1, keepdim=True).clamp(min=1)


def risk(accuracies: Tensor, shares: Tensor) -> float:
    """Return FedACD's eq. 3: the models' error, averaged over all devices' label distributions.

    Classes that were not measured are left out of the distributions.

    Args:
        accuracies: one or more models' accuracies by class [models, classes]; NaN: not measured.
        shares: the devices' label distributions [devices, classes].
    """
    measured = ~accuracies.isnan().any(0)
    shares = shares[:, measured]
    known = shares.sum(1, keepdim=True)
    shares = (shares / known)[known[:, 0] > 0]
    expected = accuracies[:, measured] @ shares.T
    return float(1.0 - expected.mean())


def learning_performance(before: Tensor, after: Tensor, counts: Tensor) -> tuple[float, float]:
    """Return LfD's eq. 11: the ratio of accuracy after to before local training.

    Two means over the devices: over their present and over their absent classes. A class weighs by
    its accuracy before: one near 0 could grow a hundredfold, and one of 0 has no ratio.

    Args:
        before: accuracies of the global model [classes].
        after: accuracies of the local models [devices, classes].
        counts: counts of the devices' training labels [devices, classes].
    """
    known = before > 0
    here = counts[:, known] > 0
    first, then = before[known].expand_as(here), after[:, known]
    present, absent = (then[some].sum() / first[some].sum() for some in (here, ~here))
    return float(present), float(absent)


def mean_and_interval(accuracies: Tensor) -> dict[str, list[float]]:
    """Return each class's mean over models [models, classes], and half of its 95 % interval.

    The interval is the normal one, 1.96 s/√n; NaN for a single model.
    """
    half = 1.96 * accuracies.std(0) / len(accuracies) ** 0.5 if len(accuracies) > 1 else None
    unknown = torch.full_like(accuracies[0], float("nan"))
    return {
        "mean": accuracies.mean(0).tolist(),
        "interval": (unknown if half is None else half).tolist(),
    }


def fairness(scores: Tensor) -> dict[str, float]:
    """Return the devices' standard deviation of accuracy, and the mean of the worst tenth."""
    if not len(scores):
        return {"personal_std": float("nan"), "personal_worst_tenth": float("nan")}
    worst = scores.sort().values[: max(1, len(scores) // 10)]
    return {
        "personal_std": float(scores.double().std(correction=0)),
        "personal_worst_tenth": float(worst.double().mean()),
    }


def probability_matrix(logits: Tensor, y: Tensor, classes: int) -> Tensor:
    """Return FedACD's P: a model's mean probabilities over the inputs of each class.

    float64 [classes, classes]; the row of a class without inputs is zero.
    """
    sums = torch.zeros(classes + 1, classes, dtype=torch.float64, device=logits.device)
    num, den = sums[:classes], sums[classes]
    ops.probability_sums_(num, den, logits, (y,))
    return num / den.clamp(min=1)[:, None]


def kl_from_template(p: Tensor, tau: float = 1 - 1e-5, mean: bool = False) -> float:
    """Return FedACD's eq. 10: KL(P ‖ Q) over the classes that are present, 0 log 0 = 0.

    Q is a perfect model's matrix: tau for the class itself, the rest shared by the others.

    Args:
        p: a probability matrix.
        tau: the probability that a perfect model gives the right class.
        mean: the mean over the present classes instead of their sum.
    """
    classes = len(p)
    q = torch.full_like(p, (1 - tau) / (classes - 1)).fill_diagonal_(tau)
    present = p.sum(1) != 0  # a row of NaN is present, and makes the result NaN
    rows = torch.special.xlogy(p, p / q).sum(1)[present]
    return float(rows.mean() if mean else rows.sum()) if present.any() else 0.0


def wrong_spread(p: Tensor) -> float:
    """Return the part of KL(P ‖ Q) that comes from an uneven spread over the wrong classes.

    With s = 1 - P_yy and r the wrong classes' shares of it, a row of KL(P ‖ Q) is the divergence of
    (P_yy, s) from (tau, 1 - tau), plus s KL(r ‖ uniform). This is the sum of the second parts.
    """
    wrong = p.clone().fill_diagonal_(0.0)
    s = wrong.sum(1, keepdim=True)
    r = wrong / s.clamp(min=torch.finfo(p.dtype).tiny)
    return float((s * torch.special.xlogy(r, r * (len(p) - 1))).sum())
