import os

import pytest
import torch

from coterie.clients.machine import set_up
from coterie.errors import UserError


def test_more_threads_than_the_machine_can_use_are_refused() -> None:
    before, most = torch.get_num_threads(), 4 * (os.cpu_count() or 1)
    for threads in (most + 1, 2**40):
        with pytest.raises(UserError, match=rf"engine\.threads = {threads} is more than {most}, which is 4 times the"):
            set_up(threads)
    assert torch.get_num_threads() == before
