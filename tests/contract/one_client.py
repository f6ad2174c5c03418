"""One client's whole life in a process of its own: it has its arrays, the announcement and what the server sends.

Run as `python one_client.py FOLDER` by test_one_client.py. It imports nothing from the tests.
"""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from coterie import Federation
from coterie.aggregate.mean import Mean
from coterie.clients import work
from coterie.clients.announcement import Announcement
from coterie.clients.workload import Workload
from coterie.core.method import Round


def live(folder: Path, arrays: Path) -> None:
    announcement = Announcement.from_json(json.loads((folder / "announcement.json").read_text()))
    own = np.load(arrays)
    name = str(own["name"])
    splits = tuple(own[key] for key in ("x_train", "y_train", "x_test", "y_test"))
    federation = Federation.from_arrays({name: splits}).to(getattr(torch, announcement.dtype), torch.device("cpu"))
    if announcement.labels == "global":
        federation = federation.relabelled(announcement.classes)
    load = Workload(announcement.work(torch.device("cpu")), federation, Mean())

    outputs = load.num_outputs(0)
    personal = load.work.prepare(name, load.work.create(name, outputs), load.data(0, "train", 0))
    keep(folder / "start.safetensors", personal)
    for place, told in enumerate(json.loads((folder / "rounds.json").read_text())):
        if not told["takes_part"]:
            continue
        rnd, shared = Round(**told["round"]), load.work.received(load_file(folder / f"sent-{place}.safetensors"))
        reply = work.local_update(load.work, shared, personal, load.data(0, "train", rnd.index), rnd)
        for part, tree in reply._asdict().items():
            keep(folder / f"{part}-{place}.safetensors", tree)
        (updated,) = work.score_updated(load.work, shared, reply.tensors, reply.personal, load.data(0, "test", 0))
        keep(folder / f"updated-{place}.safetensors", updated)
        after = load.work.received(load_file(folder / f"sent-{place + 1}.safetensors"))
        (personal,) = work.receive(load.work, after, reply.personal, rnd)
        (personal,) = work.read(load.work, {}, personal, load_file(folder / f"letter-to-{place}.safetensors"), rnd)
        keep(folder / f"kept-{place}.safetensors", personal)
    shared = load.work.received(load_file(folder / f"sent-{place + 1}.safetensors"))
    train, test = load.data(0, "train", 0), load.data(0, "test", 0)
    (adapted,) = work.adapt(load.work, shared, personal, train, 3)
    keep(folder / "score.safetensors", *work.score(load.work, shared, personal, test))
    keep(folder / "adapted.safetensors", *work.score(load.work, shared, adapted, test))
    keep(folder / "train.safetensors", *work.score(load.work, shared, personal, train))


def keep(path: Path, tree: dict[str, torch.Tensor]) -> None:
    save_file({name: value.detach().contiguous().clone() for name, value in tree.items()}, path)


if __name__ == "__main__":
    root = Path(sys.argv[1])
    for folder in sorted(path for path in root.iterdir() if path.is_dir()):
        live(folder, root / "own.npz")
