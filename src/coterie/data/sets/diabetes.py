"""Diabetes: B. Efron, T. Hastie, I. Johnstone, R. Tibshirani, "Least Angle Regression", Ann. Statist. 32, 2004.

The data come with scikit-learn.
"""

from typing import ClassVar

import numpy as np
from sklearn.datasets import load_diabetes

from coterie.data.examples import Examples
from coterie.data.sets.dataset import Dataset
from coterie.data.sets.split import split
from coterie.settings import settings


@settings
class Diabetes(Dataset):
    """Progression of diabetes in 442 patients, predicted from 10 measurements (regression). A quarter is for testing.

    It needs no download. Measurements and targets are standardised with the mean and standard deviation of the training
    examples.
    """

    usual_partition: ClassVar[str] = "feature-clusters"

    def load(self) -> Examples:
        x, y = load_diabetes(return_X_y=True)
        train, test = split(np.zeros(len(y), dtype=np.int64), share=0.25)
        x, y = (((each - each[train].mean(axis=0)) / each[train].std(axis=0)).astype(np.float32) for each in (x, y))
        return Examples(x[train], y[train], x[test], y[test], labels=())
