"""Labels of several annotators, combined with the predictions (Dawid and Skene 1979)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from noiseproof.audit.judge.posterior import SMALL, Blocks, ClassNoise, blocks, sharpen
from noiseproof.core.brief import Brief

EM_ROUNDS = 10


@dataclass(frozen=True, eq=False, repr=False)
class AnnotatorModel(Brief):
    """Annotators of N rows, with the predictions as the prior of each row.

    Annotator a is right with probability r_a and errs as T does: P(l | k) = r_a for l = k, else
    (1 − r_a)·T[k, l]/Σ_{j≠k} T[k, j]. A given label that repeats one of theirs (a majority, say) adds nothing; else it
    is one more vote, with its own T.
    """

    table: Tensor  # (N, A), −1 where an annotator gave no label
    given: Tensor  # (N,)
    probs: Tensor  # (N, K)
    noise: ClassNoise
    accuracy: Tensor  # (A,): r

    @classmethod
    def fit(cls, table: Tensor, given: Tensor, probs: Tensor, noise: ClassNoise) -> AnnotatorModel:
        """Find r by EM."""
        labelled = table >= 0
        model = cls(table, given, probs, noise, torch.full((table.shape[1],), 0.8, dtype=torch.float64))
        for _ in range(EM_ROUNDS):
            hits, count = torch.ones_like(model.accuracy), torch.full_like(model.accuracy, 1.25)  # a prior of 80 %
            for rows, truth in model.posterior():
                hits += (truth.gather(1, table[rows].clamp(min=0)) * labelled[rows]).sum(0)
                count += labelled[rows].sum(0)
            model = cls(table, given, probs, noise, (hits / count).clamp(0.02, 0.999))
        return model

    @property
    def given_is_repeated(self) -> bool:
        """Whether the given label is one of the annotators' in nearly all rows."""
        labelled = (self.table >= 0).any(1)
        repeated = (self.table == self.given[:, None]).any(1)
        return bool(labelled.any()) and float(repeated[labelled].double().mean()) > 0.95

    def posterior(self) -> Blocks:
        """P(true k | x, labels of all annotators) of each row, in blocks."""
        by_given = self.noise.transition.T.contiguous()  # (K given, K true)
        errors = self.noise.transition.clone().fill_diagonal_(0)
        errors = (errors / errors.sum(1, keepdim=True).clamp(min=SMALL)).T.contiguous()
        is_repeated = self.given_is_repeated
        for rows in blocks(self.probs):
            log_q = sharpen(self.probs[rows], self.noise.beta).log_()
            table = self.table[rows]
            for column, r in zip(table.T, self.accuracy, strict=True):
                label = column.clamp(min=0)
                likelihood = errors[label].mul_(1 - r).scatter_(1, label[:, None], float(r))
                log_q += torch.where((column >= 0)[:, None], likelihood.clamp_(min=1e-9).log_(), 0.0)
            unlabelled = (table < 0).all(1) if is_repeated else torch.ones(len(table), dtype=torch.bool)
            log_q += torch.where(unlabelled[:, None], by_given[self.given[rows]].clamp(min=1e-9).log_(), 0.0)
            yield rows, log_q.softmax(1)
