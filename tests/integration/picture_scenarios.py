"""A step on rows of which some have pictures, by one process or by ranks."""

from __future__ import annotations

import numpy as np

from roll.generation import Picture
from roll.models.loading import load_model
from roll.strategies.jobs import TrainOptions
from roll.strategies.training.pytorch.options import FsdpOptions
from roll.strategies.training.pytorch.train import FsdpTrainStrategy
from roll.strategies.training.ranks import Ranks
from roll.trajectories.batch import collate
from roll.trajectories.samples import Sample
from tests.pictures import png
from tests.strategies.training.batches import NegativeLogLikelihood


def _sample(placeholder: int, looks: tuple[int, ...], words: int) -> Sample:
    tokens = [30 + words]
    pictures = []
    for look in looks:
        pictures.append(Picture(len(tokens), 2, 3, png(2, 3, look)))
        tokens += [placeholder] * 6 + [40 + look]
    tokens += list(range(50, 50 + words))
    count = len(tokens)
    mask = [0] * (count - words) + [1] * words
    columns = [[0.0] * count, [0.0] * count, [-1] * count, [0] * count]
    return Sample("g/0", "tag", "g", 0, 0, (0, 0), tokens, mask, *columns, pictures=pictures)


SHOWN = [((1, 2), 5), ((3,), 2), ((), 7), ((), 3)]


def step(folder: str, shares: tuple[int, int]) -> tuple[float, dict[str, np.ndarray], np.ndarray]:
    """Take a step of one process, or of a rank with its share of the rows."""
    model = load_model(folder).double()
    batch = collate([_sample(model.config.image_token_id, *row) for row in SHOWN], pad_token_id=0)
    options = TrainOptions(learning_rate=1e-2, epsilon=1e-4, max_samples_per_microbatch=1)
    trainer = FsdpTrainStrategy(model, options, fsdp=FsdpOptions())
    ranks = Ranks()
    if ranks.size > 1:
        start = sum(shares[: ranks.rank])
        batch = batch[start : start + shares[ranks.rank]]
    scored = trainer.compute_log_probs(batch).numpy().copy()
    metrics = trainer.train_step(batch, NegativeLogLikelihood())
    return metrics["loss"], {name: value.numpy().copy() for name, value in trainer.named_parameters()}, scored
