"""What posteriors are good for, once there is one."""

from credo.tasks import distill, fidelity

__all__ = ["distill", "fidelity"]
