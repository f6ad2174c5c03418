"""Fashion-MNIST: H. Xiao, K. Rasul, R. Vollgraf, arXiv:1708.07747."""

from coterie.data.dataset import Dataset
from coterie.data.mnist_family import load_family
from coterie.federation import Examples
from coterie.settings import settings


@settings
class FashionMNIST(Dataset):
    """Articles of clothing, 28x28: 60000 to train, 10000 to test, 10 classes of equal size."""

    path: str | None = None
    """The folder of the four IDX files; without it, $COTERIE_DATA/fashion-mnist, then the user's cache."""

    def load(self) -> Examples:
        home_page = "https://github.com/zalandoresearch/fashion-mnist"
        return load_family("fashion-mnist", home_page, self.path, labels=_ARTICLES)


_ARTICLES = (
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
)
