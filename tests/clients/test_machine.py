import os

import pytest
import torch

from coterie.clients.machine import set_up
from coterie.clients.ray import Ray
from coterie.errors import UserError
from coterie.recipe import EngineSettings


def test_more_threads_than_the_machine_can_use_are_refused() -> None:
    before, most = torch.get_num_threads(), 4 * (os.cpu_count() or 1)
    for threads in (most + 1, 2**40):
        with pytest.raises(UserError, match=rf"engine\.threads = {threads} is more than {most}, which is 4 times the"):
            set_up(threads)
    assert torch.get_num_threads() == before


@pytest.mark.parametrize("deterministic", [True, False])
def test_cuda_is_deterministic_and_without_tf32_unless_the_recipe_says_otherwise(
    monkeypatch: pytest.MonkeyPatch, deterministic: bool
) -> None:
    matmul, cudnn, asked = torch.backends.cuda.matmul, torch.backends.cudnn, list[bool]()
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":16:8")
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda mode, warn_only: asked.append(mode))
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    try:
        set_up(0, torch.device("cpu"), deterministic)
        assert (asked, (matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic)) == ([], before)
        set_up(0, torch.device("cuda"), deterministic)
        assert asked == [deterministic]
        assert matmul.allow_tf32 == cudnn.allow_tf32 == (not deterministic)
        assert cudnn.deterministic == deterministic
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":16:8"
    assert EngineSettings().deterministic


def test_more_workers_than_the_machine_can_use_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ray, "_crew", None)  # nothing is started
    most = 4 * (os.cpu_count() or 1)
    for workers, threads in ((most + 1, 0), (100_000, 0), (most // 2 + 1, 2)):
        with pytest.raises(UserError, match=rf"engine\.workers = {workers}.* is more than {most}"):
            Ray(workers=workers, threads=threads).open(None)  # type: ignore[arg-type]
