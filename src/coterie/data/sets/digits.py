"""Digits from scikit-learn (the test part of UCI "Optical Recognition of Handwritten Digits")."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from coterie.data.examples import Examples
from coterie.data.sets.dataset import Dataset
from coterie.settings import settings


@settings
class Digits(Dataset):
    """Handwritten digits, 8x8, in 10 classes: 1797 in a fixed 75/25 split. They come with scikit-learn.

    There is no official split, so this one is stratified by class.
    """

    def load(self) -> Examples:
        bunch = load_digits()
        x = (bunch.images / 16).astype(np.float32)
        y = bunch.target.astype(np.int64)
        x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=0.25, stratify=y, random_state=0)
        return Examples(x_train, y_train, x_test, y_test, labels=tuple("0123456789"))
