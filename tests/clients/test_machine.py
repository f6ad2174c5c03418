import os

import pytest
import torch

from coterie.clients.machine import set_up
from coterie.clients.ray import Ray
from coterie.errors import UserError


def test_more_threads_than_the_machine_can_use_are_refused() -> None:
    before, most = torch.get_num_threads(), 4 * (os.cpu_count() or 1)
    for threads in (most + 1, 2**40):
        with pytest.raises(UserError, match=rf"engine\.threads = {threads} is more than {most}, which is 4 times the"):
            set_up(threads)
    assert torch.get_num_threads() == before


def test_more_workers_than_the_machine_can_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ray, "_crew", None)  # nothing is started
    most = 4 * (os.cpu_count() or 1)
    for workers, threads in ((most + 1, 0), (100_000, 0), (most // 2 + 1, 2)):
        with pytest.raises(UserError, match=rf"engine\.workers = {workers}.* is more than {most}"):
            Ray(workers=workers, threads=threads).open(None)  # type: ignore[arg-type]
