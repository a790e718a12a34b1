"""The global gradient norm, clipping by it (Pascanu et al. 2013), and other sums over a model."""

from collections.abc import Sequence

import torch

from megalith.optim.buckets import Bucket


def gradient_norm(buckets: Sequence[Bucket]) -> torch.Tensor:
    """The L2 norm over all parameters, in at least float32; a tensor of no dims."""
    return _norm([bucket.gradients for bucket in buckets])


def clip_factor(norm: float, limit: float) -> float:
    """What gradients are multiplied by: 1, or less when their norm exceeds `limit` (0: never)."""
    return min(1.0, limit / (norm + 1e-6)) if limit > 0.0 else 1.0


def parameter_norm(buckets: Sequence[Bucket]) -> float:
    """The L2 norm of all weights."""
    return _norm([bucket.weights for bucket in buckets]).item()


def zeros_in_gradient(buckets: Sequence[Bucket]) -> int:
    """How many elements of the gradient are exactly zero."""
    places = ((bucket, entry) for bucket in buckets for entry in bucket.entries)
    return sum(int((entry.of(bucket.gradients) == 0).sum()) for bucket, entry in places)


def _norm(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    wide = torch.promote_types(parts[0].dtype, torch.float32)
    norms = [torch.linalg.vector_norm(part, dtype=wide) for part in parts]
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
