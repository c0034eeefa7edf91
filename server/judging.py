"""How good a global model is, where the coordinator has data: the one thing it needs torch for."""

from __future__ import annotations

from fededge import models
from fededge.config import DataConfig
from fededge.data.local import evaluation_set
from fededge.evaluation import accuracy
from fededge.flat import FlatModel, Vector
from fededge.late import torch
from fededge.spec import ModelSpec
from fededge.training import prepare_threads

__all__ = ["Judge"]


class Judge:
    """A network and a test set; made before the federation begins, so that a mistake ends it."""

    def __init__(self, spec: ModelSpec, data: DataConfig) -> None:
        prepare_threads()
        self.test = evaluation_set(data, spec)
        self.net = FlatModel(models.build_for(spec, seed=0), trains=False)
        self.preprocess = models.Preprocess(spec)

    def accuracy(self, model: Vector) -> float:
        self.net.swap(torch.from_numpy(model))
        return accuracy(self.net.module, self.preprocess, self.test.x, self.test.y)
